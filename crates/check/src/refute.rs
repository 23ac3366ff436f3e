//! A checker that never fails proves nothing: every model here has twins that are broken on purpose, and each
//! of them must be found.

/// Runs `check` and returns the message of the panic that ends it.
///
/// It runs on a thread of its own, so that what a model checker leaves behind when it panics disturbs no other test.
///
/// # Panics
/// `check` ended without a panic: it is blind to the flaw.
#[track_caller]
pub fn failure_of(flaw: &str, check: impl FnOnce() + Send + 'static) -> String {
    match std::thread::Builder::new().name(format!("broken on purpose: {flaw}")).spawn(check) {
        Err(error) => panic!("cannot start a thread: {error}"),
        Ok(thread) => match thread.join() {
            Ok(()) => panic!("not found: {flaw}"),
            Err(payload) => payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
                .unwrap_or_default(),
        },
    }
}

/// As [`failure_of`], and the message must contain one of `any_of`, so that a model that fails for another
/// reason does not pass for one that found the flaw.
#[track_caller]
pub fn must_fail(flaw: &str, any_of: &[&str], check: impl FnOnce() + Send + 'static) {
    let message = failure_of(flaw, check);
    assert!(
        any_of.iter().any(|part| message.contains(part)),
        "{flaw}: failed with {message:?}, which mentions none of {any_of:?}"
    );
}
