//! `doctor --watch`: the zones, the rates of their counters, and the findings, drawn every second.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};

use super::{Rate, rates, zones};
use crate::command::*;
use crate::doctor::{Root, State, examine};

/// Interval between two screens.
const EVERY: Duration = Duration::from_secs(1);
/// Longest time from a signal to the end.
const LOOK: Duration = Duration::from_millis(100);

/// The terminal's other screen, without a cursor. What was on the first one is back when this is dropped.
struct Screen {
    /// The terminal passes keys on one by one, and does not show them.
    keys: bool,
}

impl Screen {
    fn new() -> io::Result<Self> {
        let keys = io::stdin().is_terminal() && terminal::enable_raw_mode().is_ok();
        let screen = Self { keys };
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Draws as many lines as there is room for.
    fn draw(&self, text: &str) -> io::Result<()> {
        let (columns, rows) = terminal::size()?;
        let mut out = io::stdout().lock();
        queue!(out, MoveTo(0, 0))?;
        let lines: Vec<&str> = text.lines().collect();
        let room = usize::from(rows);
        let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
        for (row, line) in lines[..shown].iter().enumerate() {
            queue!(out, MoveTo(0, row as u16))?;
            write!(out, "{}", fitting(line, usize::from(columns)))?;
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, MoveTo(0, shown as u16))?;
        if shown < lines.len() {
            write!(out, "{}", fitting(&format!("{} lines more", lines.len() - shown), usize::from(columns)))?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush()
    }

    /// Waits until `until`. Returns whether a key or a signal ends the command.
    fn wait(&self, until: Instant, stop: &Interrupt) -> io::Result<bool> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || stop.is_raised() {
                return Ok(stop.is_raised());
            }
            if !self.keys {
                std::thread::sleep(left.min(LOOK));
                continue;
            }
            if event::poll(left.min(LOOK))? {
                match event::read()? {
                    Event::Key(key) if ends(key) => return Ok(true),
                    // Drawn again immediately, in the new size.
                    Event::Resize(..) => return Ok(false),
                    _ => {}
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        if self.keys {
            let _ = terminal::disable_raw_mode();
        }
    }
}

fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        KeyCode::Char('c') => control,
        _ => false,
    }
}

/// As much of a line as fits. Escape sequences take no room.
fn fitting(line: &str, columns: usize) -> String {
    let (mut taken, mut inside) = (0, false);
    let mut fits = |c: char| {
        if c == '\u{1b}' {
            inside = true;
        } else if inside {
            inside = c != 'm';
        } else {
            taken += 1;
            return taken <= columns;
        }
        true
    };
    line.chars().filter(|&c| fits(c)).collect()
}

/// Draws until a key or a signal ends it.
pub(super) fn watch(root: &Root, session: &Session) -> Result<()> {
    if session.format != Format::Table || session.terminal.width.is_none() {
        return Err(Error::usage("--watch draws on a terminal; elsewhere run `framewright doctor` again"));
    }
    let stop = Interrupt::watched();
    // What cannot be read is said on the screen that stays. Counters are judged by their growth from here on.
    let began = State::read(root)?;
    let screen = Screen::new().map_err(Error::failed)?;
    let mut before: Option<(State, Instant)> = None;
    loop {
        let (state, findings) = examine(root, Some(&began))?;
        let now = Instant::now();
        let mut text = format!("Linux {} at {}; q ends\n\n", state.release, root.path.display());
        text += &zones(&state).render(Format::Table, &session.terminal);
        if let Some((earlier, at)) = &before {
            let seconds = (now - *at).as_secs_f64();
            text += "\n";
            let mut listing = Listing::new("", &["in a second", "pages or events"]);
            for Rate { words, value, .. } in rates(earlier, &state, seconds) {
                listing.row([words.to_owned(), format!("{value:.0}")]);
            }
            text += &listing.render(Format::Table, &session.terminal);
        }
        text.push('\n');
        for finding in &findings {
            let zone = finding.zone.as_ref().map_or_else(String::new, |zone| format!(" ({zone})"));
            text += &format!("{}: {}{zone}: {}\n", finding.severity.name(), finding.id, finding.read);
        }
        screen.draw(&session.terminal.spell(&text)).map_err(Error::failed)?;
        before = Some((state, now));
        if screen.wait(now + EVERY, &stop).map_err(Error::failed)? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_where_the_terminal_ends() {
        assert_eq!(fitting("abcdef", 4), "abcd");
        assert_eq!(fitting("ab", 4), "ab");
        // What switches bold off comes, too.
        assert_eq!(fitting("\u{1b}[1mabcdef\u{1b}[0m", 4), "\u{1b}[1mabcd\u{1b}[0m");
        assert_eq!(fitting("äöü", 2), "äö");
    }

    #[test]
    fn q_escape_and_control_c_end_it() {
        let key = |code, modifiers| ends(KeyEvent::new(code, modifiers));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE) && key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(
            !key(KeyCode::Char('c'), KeyModifiers::NONE) && !key(KeyCode::Char('x'), KeyModifiers::CONTROL)
        );
    }
}
