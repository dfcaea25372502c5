use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Progress line on standard error: rewritten once a second on a terminal, else a new line every five seconds.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
    is_silent: bool,
    last: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), is_silent: false, last: None }
    }

    /// A progress line that prints nothing.
    pub(crate) fn silent() -> Self {
        Self { is_terminal: false, is_silent: true, last: None }
    }

    /// Prints `line` if the interval has passed.
    pub(crate) fn show(&mut self, line: impl FnOnce() -> String) {
        let pause = Duration::from_secs(if self.is_terminal { 1 } else { 5 });
        let now = Instant::now();
        if self.is_silent || now - *self.last.get_or_insert(now) < pause {
            return;
        }
        self.last = Some(now);
        // A failed write must not stop the run.
        let mut err = io::stderr().lock();
        let _ = if self.is_terminal { write!(err, "\r\x1b[K{}", line()) } else { writeln!(err, "{}", line()) };
        let _ = err.flush();
    }

    /// Removes the line from the terminal, so that results start at its left edge.
    pub(crate) fn clear(&mut self) {
        if self.is_terminal && self.last.is_some() {
            let mut err = io::stderr().lock();
            let _ = write!(err, "\r\x1b[K");
            let _ = err.flush();
        }
        self.last = None;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
