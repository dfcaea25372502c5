//! `events.jsonl`: the life of each fault, a line for each step.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::judge::windows::Effect;
use crate::units::Time;

/// A line of `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// Seconds after the warm-up; null before its end is known.
    pub at: Option<Time>,
    /// Name of the action.
    pub action: String,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// The step.
    #[serde(flatten)]
    pub happening: Happening,
}

/// A step in the life of a fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Happening {
    /// The plan has it.
    Planned {
        /// Planned begin.
        planned: Time,
        /// The change, in words.
        change: String,
        /// The undo, in words.
        undo: Option<String>,
    },
    /// Its targets are chosen: members, or links as `a → b`.
    Resolved {
        /// Names of members, or links.
        targets: Vec<String>,
    },
    /// The change is complete.
    Begun,
    /// The time of the fault is over; its undo begins.
    Ended,
    /// The undo is complete: a killed instance is ready again.
    Undone,
    /// The change or the undo failed.
    Failed {
        /// What failed, and why.
        error: String,
        /// True if the undo failed, so that a change is left behind.
        is_undo: bool,
    },
}

/// All events of a run, and the writer of its file.
#[derive(Debug)]
pub struct EventLog<W> {
    out: W,
    events: Vec<Event>,
}

impl<W: Write> EventLog<W> {
    /// An empty log that is written to `out`.
    pub const fn new(out: W) -> Self {
        Self { out, events: Vec::new() }
    }

    /// Writes an event at once, so that the file of a killed run has it.
    ///
    /// # Errors
    /// The writer fails. The event is kept in memory anyway.
    pub fn add(&mut self, event: Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(&event).map_err(io::Error::other)?;
        line.push(b'\n');
        self.events.push(event);
        self.out.write_all(&line)?;
        self.out.flush()
    }

    /// All events so far.
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

impl Event {
    /// Reads the lines of a file.
    ///
    /// # Errors
    /// The reader fails, or a line is no event. The error then has the line's number.
    pub fn read(lines: impl BufRead) -> io::Result<Vec<Self>> {
        let parse = |(index, line): (usize, io::Result<String>)| {
            let line = line?;
            serde_json::from_str(&line)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {error}", index + 1)))
        };
        lines.lines().enumerate().map(parse).collect()
    }

    /// When each repetition of each action was in effect, for phases: from `Begun` to `Undone`, or else to `end`.
    pub fn effects(events: &[Self], end: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        for begun in events.iter().filter(|event| event.happening == Happening::Begun) {
            let is_undone = |event: &&Self| {
                event.happening == Happening::Undone
                    && (&event.action, event.repetition) == (&begun.action, begun.repetition)
            };
            let undone = events.iter().find(is_undone).and_then(|event| event.at);
            let Some(begin) = begun.at else { continue };
            effects.push(Effect { action: begun.action.clone(), begin, end: undone.unwrap_or(end) });
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: u64, repetition: u32, happening: Happening) -> Event {
        let at = Some(Time::from_secs(at));
        Event { time_ns: 7, at, action: "kill".to_owned(), repetition, happening }
    }

    #[test]
    fn events_survive_the_file() {
        let events = vec![
            Event {
                at: None,
                ..event(
                    0,
                    1,
                    Happening::Planned { planned: Time::from_secs(40), change: "send".to_owned(), undo: None },
                )
            },
            event(40, 1, Happening::Resolved { targets: vec!["broker-2".to_owned()] }),
            event(40, 1, Happening::Begun),
            event(42, 1, Happening::Ended),
            event(43, 1, Happening::Failed { error: "no such program".to_owned(), is_undo: true }),
        ];
        let mut file = Vec::new();
        let mut log = EventLog::new(&mut file);
        events.iter().for_each(|event| log.add(event.clone()).unwrap());
        assert_eq!(log.events(), events);
        assert_eq!(file.iter().filter(|&&byte| byte == b'\n').count(), events.len());
        assert_eq!(Event::read(file.as_slice()).unwrap(), events);
        let wrong = Event::read(&b"{}\n"[..]).unwrap_err();
        assert!(wrong.to_string().starts_with("line 1: "), "{wrong}");
    }

    #[test]
    fn effects_last_from_begun_to_undone() {
        let events = [
            event(10, 1, Happening::Begun),
            event(12, 1, Happening::Ended),
            event(13, 1, Happening::Undone),
            event(20, 2, Happening::Begun),
        ];
        let effects = Event::effects(&events, Time::from_secs(30));
        let times: Vec<_> = effects.iter().map(|effect| (effect.begin.secs(), effect.end.secs())).collect();
        assert_eq!(times, [(10.0, 13.0), (20.0, 30.0)]);
    }
}
