use std::io::{self, Write};
use std::path::Path;

use tenbin_store::LockedDirectory;
use tenbin_store::spool::{self, CheckedSegment, OpenError};
use tenbin_store::state::{FORMAT_VERSION, Snapshot, Table};

use super::lines::{Line, Numbers};
use super::{Found, InspectionError};
use crate::durable::RUN_KEY;

/// Checks a data directory, and writes its contents and problems in lines.
///
/// Decodes every record of the state, and verifies the checksum of every record of the log. Bodies of messages are not
/// decoded.
///
/// # Errors
/// The directory cannot be opened, or `out` cannot be written.
pub fn check(directory: &Path, out: &mut dyn Write) -> Result<Found, InspectionError> {
    let locked = LockedDirectory::open_to_read(directory)?;
    let mut checking = Checking { out, found: Found::default(), numbers: None };
    match Snapshot::open(&locked) {
        Ok(state) => {
            checking.state(&state)?;
            let mut had_run = false;
            // A table that cannot be read is a problem already.
            let _ = state.scan(Table::Meta, &mut |key, _| had_run |= key == RUN_KEY);
            if let Err(mismatch) = state.check_messages(&locked, had_run) {
                checking.damaged(format_args!("{mismatch}"))?;
            }
        }
        Err(error) => {
            checking.found.count(&error);
            writeln!(checking.out, "problem: {error}")?;
        }
    }
    let path = directory.join("spool");
    match spool::check(&path) {
        Ok(spool) => checking.messages(&spool)?,
        Err(error) => checking.unreadable(format_args!("messages in {}: {error}", path.display()))?,
    }
    let Checking { out, found, .. } = checking;
    match found {
        Found { damaged: 0, unreadable: 0 } => writeln!(out, "fine: a broker can use it")?,
        Found { damaged, unreadable } => writeln!(out, "not fine: {damaged} damaged, {unreadable} cannot be read")?,
    }
    Ok(found)
}

struct Checking<'a> {
    out: &'a mut dyn Write,
    found: Found,
    /// `None`: unknown, since the state cannot be read.
    numbers: Option<Numbers>,
}

impl Checking<'_> {
    fn state(&mut self, state: &Snapshot) -> io::Result<()> {
        let counts = self.tables(state)?;
        let [sessions, subscriptions, retained, wills, speeds, groups] = counts;
        writeln!(
            self.out,
            "{}: format version {FORMAT_VERSION}, {sessions} sessions, {subscriptions} subscriptions, {retained} retained \
             messages, {wills} Wills, {speeds} speeds, {groups} share groups with a queue",
            state.path().display(),
        )?;
        for dropped in state.dropped() {
            if dropped.is_torn {
                writeln!(self.out, "note: {dropped}")?;
            } else {
                self.damaged(format_args!("{dropped}"))?;
            }
        }
        Ok(())
    }

    /// Checks all tables. Returns the number of records of each kind.
    fn tables(&mut self, state: &Snapshot) -> io::Result<[u64; 6]> {
        let mut counts = [0; 6];
        let mut of_nobody = 0_u64;
        let mut numbers = Numbers::default();
        for table in Table::ALL {
            let mut result = Ok(());
            let scanned = state.scan(table, &mut |key, value| {
                let checked = Line::decode(table, key, value, false).and_then(|line| {
                    let Some(line) = line else { return Ok(()) };
                    numbers.note(&line)?;
                    if let Some(kind) = kind_of(&line) {
                        counts[kind] += 1;
                    }
                    let is_known = |session| numbers.sessions.contains(&session);
                    of_nobody += u64::from(matches!(line, Line::Subscription { session, .. } if !is_known(session)));
                    Ok(())
                });
                if let Err(error) = checked
                    && result.is_ok()
                {
                    let (name, key) = (table.name(), key.escape_ascii());
                    result = self.damaged(format_args!("state: table {name}, key \"{key}\": {error}"));
                }
            });
            result?;
            if let Err(error) = scanned {
                self.damaged(format_args!("state: table {} cannot be read to its end: {error}", table.name()))?;
            }
        }
        if of_nobody > 0 {
            writeln!(
                self.out,
                "note: {of_nobody} subscriptions of ended sessions; a crash may leave them, and a broker removes them"
            )?;
        }
        self.numbers = Some(numbers);
        Ok(counts)
    }

    fn messages(&mut self, checked: &spool::Checked) -> io::Result<()> {
        for segment in &checked.segments {
            self.segment(segment, checked.verdict.is_ok())?;
        }
        match &checked.verdict {
            Ok(snapshot) => self.queues(snapshot),
            Err(OpenError::UnknownVersion { .. } | OpenError::Io { .. }) if self.found.unreadable > 0 => Ok(()),
            Err(error @ (OpenError::UnknownVersion { .. } | OpenError::Io { .. })) => {
                self.unreadable(format_args!("messages: {error}"))
            }
            Err(error) => self.damaged(format_args!("messages: {error}")),
        }
    }

    /// `is_whole_log`: the log is fine as a whole, so that an incomplete write in this segment was never confirmed.
    fn segment(&mut self, segment: &CheckedSegment, is_whole_log: bool) -> io::Result<()> {
        let CheckedSegment { version, records, end, problem, behind, .. } = segment;
        let path = segment.path.display();
        match (problem, version) {
            (Some(problem), Some(_)) => return self.unreadable(format_args!("{path}: offset 0: {problem}")),
            // The verdict says whether the log needs this segment.
            (Some(problem), None) => return writeln!(self.out, "{path}: offset 0: {problem}"),
            (None, version) => {
                let version = version.unwrap_or_default();
                writeln!(self.out, "{path}: format version {version}, {records} records, {end} bytes")?;
            }
        }
        match behind {
            Some((bytes, records)) if is_whole_log => writeln!(
                self.out,
                "note: {path}: offset {end}: {bytes} bytes of a write that was not wholly written, and {records} records \
                 behind them, which a broker leaves out"
            ),
            // The verdict repeats it if the log needs these bytes.
            Some((bytes, records)) => writeln!(
                self.out,
                "{path}: offset {end}: {bytes} bytes that are no records, and at least {records} records behind them"
            ),
            None => Ok(()),
        }
    }

    fn queues(&mut self, snapshot: &spool::Snapshot) -> io::Result<()> {
        let recovered = snapshot.recovered();
        let closed = if recovered.was_closed {
            "closed in order"
        } else {
            "not closed: its broker was killed, and unconfirmed messages may be missing"
        };
        let (queues, waiting) = (recovered.queues, recovered.waiting);
        writeln!(self.out, "messages: {waiting} wait in {queues} queues, {closed}")?;
        let Some(numbers) = self.numbers.take() else { return Ok(()) };
        let (mut of_sessions, mut of_groups, mut of_nobody) = (0, 0, 0_usize);
        for queue in snapshot.queues() {
            match queue.0 {
                number if numbers.sessions.contains(&number) => of_sessions += 1,
                number if numbers.groups.contains(&number) => of_groups += 1,
                _ => of_nobody += 1,
            }
        }
        let nothing_waits = numbers.sessions.len() - of_sessions;
        writeln!(
            self.out,
            "queues: {of_sessions} of sessions, {of_groups} of share groups; {nothing_waits} sessions have none, since \
             nothing waits for them"
        )?;
        if of_nobody > 0 {
            writeln!(self.out, "note: {of_nobody} queues without an owner; a broker removes them")?;
        }
        Ok(())
    }

    fn damaged(&mut self, what: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.found.damaged += 1;
        writeln!(self.out, "problem: {what}")
    }

    fn unreadable(&mut self, what: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.found.unreadable += 1;
        writeln!(self.out, "problem: {what}")
    }
}

/// Index of the record's kind among the counts.
fn kind_of(line: &Line) -> Option<usize> {
    match line {
        Line::Session { .. } => Some(0),
        Line::Subscription { .. } => Some(1),
        Line::Retained { .. } => Some(2),
        Line::Will { .. } => Some(3),
        Line::Speed { .. } => Some(4),
        Line::Group { .. } => Some(5),
        _ => None,
    }
}
