use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The lines of a child's output, collected by a thread; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Lines {
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    lines: Vec<String>,
    ended: bool,
}

impl Lines {
    /// Collects the lines of `output` until it ends.
    pub(crate) fn collect(output: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let collected = lines.clone();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
            for line in lines {
                let line = String::from_utf8_lossy(&line).into_owned();
                collected.change(|state| state.lines.push(line));
            }
            collected.change(|state| state.ended = true);
        });
        lines
    }

    /// All lines so far.
    pub(crate) fn all(&self) -> Vec<String> {
        self.lock().lines.clone()
    }

    /// All lines, once the output has ended.
    pub(crate) fn to_end(&self, patience: Duration) -> Vec<String> {
        self.wait(patience, |state| state.ended.then(|| state.lines.clone())).unwrap_or_else(|| self.all())
    }

    /// Waits for the first line that contains all of `words`.
    ///
    /// # Panics
    /// If the output ends, or `patience` does, without such a line.
    pub(crate) fn wait_for(&self, words: &[&str], patience: Duration) -> String {
        self.find(words, patience)
            .unwrap_or_else(|| panic!("no line with {words:?} among these:\n{}", self.all().join("\n")))
    }

    /// As [`Lines::wait_for`], but returns `None` instead of a panic.
    pub(crate) fn find(&self, words: &[&str], patience: Duration) -> Option<String> {
        let holds = |line: &&String| words.iter().all(|word| line.contains(word));
        self.wait(patience, |state| match state.lines.iter().find(holds) {
            Some(line) => Some(Some(line.clone())),
            None => state.ended.then_some(None),
        })
        .flatten()
    }

    /// Number of lines with `word`, once there are `expected` of them or `patience` has ended.
    pub(crate) fn count(&self, word: &str, expected: usize, patience: Duration) -> usize {
        let count = |state: &State| state.lines.iter().filter(|line| line.contains(word)).count();
        self.wait(patience, |state| (count(state) >= expected).then_some(())).unwrap_or(());
        count(&self.lock())
    }

    fn wait<T>(&self, patience: Duration, found: impl Fn(&State) -> Option<T>) -> Option<T> {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        loop {
            if let Some(found) = found(&state) {
                return Some(found);
            }
            let left = until.checked_duration_since(Instant::now())?;
            state = self.state.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.state.1.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
