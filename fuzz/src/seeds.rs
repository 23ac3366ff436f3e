//! Writes the seeds of every target, and what was found before, to `FOLDER/TARGET/`, where libFuzzer starts from.
#![deny(unsafe_code)]

use std::path::PathBuf;

use framewright_fuzz::{TARGETS, regressions};

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "fuzz/corpus".into()));
    for target in TARGETS {
        let folder = folder.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in (target.seeds)().into_iter().chain(regressions(target)).enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
