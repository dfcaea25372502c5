//! The last 24 hours in about twenty series, kept across restarts.
//!
//! ```text
//!   each tick:  10 s over? ─► a row for an hour ─► 60 s over? ─► a row for a day ─► file in the data directory
//! ```

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tenbin_admin::quantile;
use tenbin_kit::files;

use super::arrivals::KnownRate;
use super::{Control, bans, groups};
use crate::lifecycle::chronicle::{Entry, now_ms};

/// Names of the series. Rates are a second.
const SERIES: [&str; 21] = [
    "messages_received",
    "messages_sent",
    "bytes_received",
    "bytes_sent",
    "connects_accepted",
    "dropped",
    "refused",
    "denied",
    "clients",
    "sessions",
    "slow_clients",
    "queued_messages",
    "stored_messages",
    "queued_bytes",
    "memory_bytes",
    "delivery_p50_ms",
    "delivery_p99_ms",
    "commit_ms",
    "group_backlog",
    "group_members",
    "group_wanted",
];
/// The first ones are rates of counters.
const RATES: usize = 8;
/// Series whose minute is the largest of its values instead of their mean.
const LARGEST: [&str; 2] = ["delivery_p99_ms", "commit_ms"];

/// A value of each series; NaN = unknown.
type Row = [f32; SERIES.len()];

/// Rows of equal intervals, the newest last.
#[derive(Debug)]
struct Ring {
    step_ms: u64,
    maximum: usize,
    rows: VecDeque<Row>,
    /// Number of the interval of the newest row since 1970.
    last: u64,
}

impl Ring {
    fn new(step_ms: u64, maximum: usize) -> Self {
        Self { step_ms, maximum, rows: VecDeque::new(), last: 0 }
    }

    /// Adds the row of an interval. Intervals in between have no values; a clock that was set back begins anew.
    fn push(&mut self, interval: u64, row: Row) {
        if interval <= self.last || interval - self.last > self.maximum as u64 {
            self.rows.clear();
        } else {
            let missing = (interval - self.last - 1) as usize;
            self.rows.extend(std::iter::repeat_n([f32::NAN; SERIES.len()], missing));
        }
        self.rows.push_back(row);
        self.rows.drain(..self.rows.len().saturating_sub(self.maximum));
        self.last = interval;
    }

    /// The values of each series by its name.
    fn view(&self) -> Value {
        let column = |(at, name): (usize, &&str)| {
            let values = self.rows.iter().map(|row| Some(row[at]).filter(|value| value.is_finite()));
            ((*name).to_owned(), json!(values.collect::<Vec<_>>()))
        };
        let values: Map<_, _> = SERIES.iter().enumerate().map(column).collect();
        json!({ "step_ms": self.step_ms, "end_ms": (self.last + 1) * self.step_ms, "values": values })
    }

    fn stored(&self) -> StoredRing {
        let known = |row: &Row| row.iter().map(|value| Some(*value).filter(|value| value.is_finite())).collect();
        StoredRing { last: self.last, rows: self.rows.iter().map(known).collect() }
    }

    /// Takes the rows of the last run, unless they are of the future.
    fn restore(&mut self, stored: StoredRing, now_ms: u64) {
        let is_whole = stored.rows.iter().all(|row| row.len() == SERIES.len());
        if is_whole && stored.rows.len() <= self.maximum && stored.last <= now_ms / self.step_ms {
            let row = |row: Vec<Option<f32>>| std::array::from_fn(|at| row[at].unwrap_or(f32::NAN));
            (self.rows, self.last) = (stored.rows.into_iter().map(row).collect(), stored.last);
        }
    }
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    version: u32,
    series: Vec<String>,
    ten_seconds: StoredRing,
    minutes: StoredRing,
    events: Vec<Entry>,
    rates: Vec<KnownRate>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredRing {
    last: u64,
    rows: Vec<Vec<Option<f32>>>,
}

/// Values at the begin of a row, of which the row has differences.
#[derive(Debug, Clone)]
struct Totals {
    at: Instant,
    counters: [u64; RATES],
    /// Counts of delivery times by their upper bound.
    deliveries: Vec<(f64, u64)>,
    commits: u64,
    commit_ms: f64,
}

/// The past.
#[derive(Debug)]
pub(super) struct Past {
    state: Mutex<State>,
    /// `None` = it ends with the broker.
    file: Option<PathBuf>,
    /// Held while the file is written.
    writing: Arc<Mutex<()>>,
}

#[derive(Debug)]
struct State {
    ten_seconds: Ring,
    minutes: Ring,
    before: Option<Totals>,
    /// Rows of the present minute.
    minute: Vec<Row>,
    is_in_use: bool,
}

impl Past {
    pub(super) fn new(directory: Option<&Path>) -> Self {
        let state = State {
            ten_seconds: Ring::new(10_000, 360),
            minutes: Ring::new(60_000, 1440),
            before: None,
            minute: Vec::new(),
            is_in_use: false,
        };
        let file = directory.map(|directory| directory.join(FILE));
        Self { state: Mutex::new(state), file, writing: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file of the last run.
    fn read(&self) -> io::Result<Option<Stored>> {
        let Some(file) = &self.file else { return Ok(None) };
        let bytes = match files::read(file, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let stored: Stored = serde_json::from_slice(&bytes)?;
        if stored.version != VERSION || stored.series != SERIES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "another version has written it"));
        }
        Ok(Some(stored))
    }
}

impl State {
    /// Takes the row of ten seconds; returns whether a minute is over.
    fn take(&mut self, interval: u64, row: Row) -> bool {
        let minute = interval / 6;
        self.ten_seconds.push(interval, row);
        self.minute.push(row);
        let is_over = interval % 6 == 5;
        if is_over {
            let rows = std::mem::take(&mut self.minute);
            self.minutes.push(minute, std::array::from_fn(|at| of_minute(&rows, at)));
        }
        is_over
    }
}

/// The value of a series for a minute.
fn of_minute(rows: &[Row], at: usize) -> f32 {
    let known = rows.iter().map(|row| row[at]).filter(|value| value.is_finite());
    if LARGEST.contains(&SERIES[at]) {
        return known.fold(f32::NAN, f32::max);
    }
    let (count, sum) = known.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    rounded(f64::from(sum) / count)
}

/// Four digits are enough for a chart.
fn rounded(value: f64) -> f32 {
    if value == 0.0 || !value.is_finite() {
        return value as f32;
    }
    let power = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    ((value * power).round() / power) as f32
}

impl Control {
    /// Takes the past of the last run. A damaged file is no reason not to start.
    pub(super) fn restore_past(&self) {
        match self.past.read() {
            Ok(None) => {}
            Ok(Some(stored)) => {
                let now = now_ms();
                let mut state = self.past.state();
                state.ten_seconds.restore(stored.ten_seconds, now);
                state.minutes.restore(stored.minutes, now);
                self.arrivals.restore(stored.rates);
                self.shared.operations.chronicle.restore(stored.events);
            }
            Err(error) => {
                tracing::warn!(file = FILE, %error, "the past of the last run cannot be read: it begins anew")
            }
        }
    }

    /// Adds a row when ten seconds are over, and stores the file each minute.
    pub(super) fn keep_past(&self, now: Instant) {
        let interval = now_ms() / 10_000;
        let totals = self.totals(now);
        let is_minute_over = {
            let mut state = self.past.state();
            state.is_in_use = true;
            // The present interval is the one after the last row.
            let last = interval.saturating_sub(1);
            if state.before.is_some() && last == state.ten_seconds.last {
                return;
            }
            let Some(before) = state.before.replace(totals.clone()) else { return };
            let row = self.row(&before, &totals, now);
            state.take(last, row)
        };
        if is_minute_over && self.shared.operations.leadership.holds() {
            self.store_past_beside();
        }
    }

    fn totals(&self, now: Instant) -> Totals {
        let operations = &self.shared.operations;
        let metrics = operations.metrics.snapshot();
        let denied = operations.denials.all().into_iter().map(|(.., count)| count).sum();
        let named = |wanted: &str| metrics.named().find(|(name, _)| *name == wanted).map_or(0, |(_, value)| value);
        let counters = std::array::from_fn(|at| match SERIES[at] {
            "dropped" => metrics.dropped(),
            "refused" => operations.metrics.bounds.all().map(|(_, count)| count).sum(),
            "denied" => denied,
            name => named(name),
        });
        let timings = operations.metrics.timings();
        let store = self.shared.storage.durable.as_ref().map(|durable| durable.message_stats().0);
        Totals {
            at: now,
            counters,
            deliveries: timings.map(|timings| timings.deliveries.counts().collect()).unwrap_or_default(),
            commits: store.as_ref().map_or(0, |log| log.commits),
            commit_ms: store.as_ref().map_or(0.0, |log| log.sync_time.as_secs_f64() * 1e3),
        }
    }

    /// The values since `before`.
    fn row(&self, before: &Totals, totals: &Totals, now: Instant) -> Row {
        let seconds = totals.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
        let (metrics, storage) = (self.shared.operations.metrics.snapshot(), &self.shared.storage);
        let counts: Vec<_> = totals.deliveries.iter().zip(before.deliveries.iter()).collect();
        let counts: Vec<_> = counts.iter().map(|((bound, now), (_, old))| (*bound, now.saturating_sub(*old))).collect();
        let delivery = |part| match counts.iter().map(|(_, count)| count).sum::<u64>() {
            0 => f64::NAN,
            _ => quantile(&counts, part) * 1e3,
        };
        let commits = totals.commits.saturating_sub(before.commits);
        let commit_ms = (totals.commit_ms - before.commit_ms) / commits as f64;
        let (mut backlog, mut members, mut wanted) = (0, 0, 0);
        for groups::BusyGroup { load, scale, .. } in self.busiest_groups(GROUPS_MAX, now) {
            backlog += load.backlog;
            members += load.members;
            wanted += scale.desired.unwrap_or(0);
        }
        let stored = storage.durable.as_ref().map_or(0, |durable| durable.message_stats().0.waiting);
        std::array::from_fn(|at| {
            rounded(match SERIES[at] {
                _ if at < RATES => totals.counters[at].saturating_sub(before.counters[at]) as f64 / seconds,
                "clients" => metrics.clients_connected as f64,
                "sessions" => self.shared.sessions.registry.len() as f64,
                "slow_clients" => (metrics.clients_watch + metrics.clients_spooling) as f64,
                "queued_messages" => storage.budget.messages() as f64,
                "stored_messages" => stored as f64,
                "queued_bytes" => storage.budget.used() as f64,
                "memory_bytes" => storage.memory.used() as f64,
                "delivery_p50_ms" => delivery(0.5),
                "delivery_p99_ms" => delivery(0.99),
                "commit_ms" => commit_ms,
                "group_backlog" => backlog as f64,
                "group_members" => members as f64,
                "group_wanted" => wanted as f64,
                _ => f64::NAN,
            })
        })
    }

    /// The series, and the last events, the newest first.
    pub(super) fn show_past(&self) -> Value {
        let state = self.past.state();
        json!({
            "time_ms": now_ms(),
            "ten_seconds": state.ten_seconds.view(),
            "minutes": state.minutes.view(),
            "events": self.show_events(),
        })
    }

    /// The file and its content; `None` = nothing is to be stored.
    fn past_to_store(&self) -> Option<(PathBuf, Vec<u8>)> {
        let file = self.past.file.clone()?;
        let state = self.past.state();
        if !state.is_in_use {
            return None;
        }
        let router = &self.shared.routing.router;
        let key = |number| {
            let key = groups::key_of(&*router.group_numbered(number)?);
            (key.0.len() + key.1.len() <= NAMES_BYTES_MAX).then_some(key)
        };
        let stored = Stored {
            version: VERSION,
            series: SERIES.map(str::to_owned).to_vec(),
            ten_seconds: state.ten_seconds.stored(),
            minutes: state.minutes.stored(),
            events: self.shared.operations.chronicle.all(),
            rates: self.arrivals.known(key, Instant::now()),
        };
        serde_json::to_vec(&stored).ok().filter(|text| text.len() as u64 <= FILE_BYTES_MAX).map(|text| (file, text))
    }

    /// Stores the past on another thread: the disk may be slow.
    fn store_past_beside(&self) {
        let Some((file, text)) = self.past_to_store() else { return };
        let writing = Arc::clone(&self.past.writing);
        let write = move || {
            // An earlier write that still waits for the disk has enough.
            let Ok(_writing) = writing.try_lock() else { return };
            report(bans::write(&file, &text));
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(write);
        }
    }

    /// Stores the past before the broker ends.
    pub(crate) fn store_past(&self) {
        let Some((file, text)) = self.past_to_store() else { return };
        let _writing = self.past.writing.lock().unwrap_or_else(PoisonError::into_inner);
        report(bans::write(&file, &text));
    }
}

fn report(written: io::Result<()>) {
    if let Err(error) = written {
        tracing::warn!(file = FILE, %error, "the past cannot be stored");
    }
}

/// The file in a data directory.
const FILE: &str = "past.json";
const VERSION: u32 = 1;
const FILE_BYTES_MAX: u64 = 2 << 20;
/// Bytes of a group's names that are stored.
const NAMES_BYTES_MAX: usize = 512;
/// Groups whose figures are summed: those named by rules, then the busiest.
const GROUPS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: f32) -> Row {
        [value; SERIES.len()]
    }

    #[test]
    fn missing_intervals_have_no_values_and_old_ones_go() {
        let mut ring = Ring::new(10_000, 4);
        ring.push(100, row(1.0));
        ring.push(102, row(2.0));
        let clients = |ring: &Ring| ring.view()["values"]["clients"].clone();
        assert_eq!((clients(&ring), &ring.view()["end_ms"]), (json!([1.0, null, 2.0]), &json!(1_030_000)));
        ring.push(104, row(3.0));
        assert_eq!(clients(&ring), json!([null, 2.0, null, 3.0]));
        ring.push(50, row(4.0));
        assert_eq!(clients(&ring), json!([4.0]), "the clock was set back");
        ring.push(1_000_000, row(5.0));
        assert_eq!(clients(&ring), json!([5.0]), "a long time later");
    }

    #[test]
    fn minute_is_the_mean_or_the_largest() {
        let rows = [row(1.0), row(3.0), row(f32::NAN)];
        let at = |name| of_minute(&rows, SERIES.iter().position(|series| *series == name).expect("a series"));
        assert_eq!((at("clients"), at("delivery_p99_ms")), (2.0, 3.0));
        assert!(of_minute(&[row(f32::NAN)], 0).is_nan());
    }

    #[test]
    fn full_past_fits_its_file() {
        let mut ring = Ring::new(60_000, 1440);
        for interval in 1..=1440 {
            ring.push(interval, row(rounded(123_456.789 * interval as f64)));
        }
        let text = serde_json::to_vec(&ring.stored()).expect("JSON");
        assert!(text.len() < 400_000, "{}", text.len());
        let mut again = Ring::new(60_000, 1440);
        again.restore(serde_json::from_slice(&text).expect("JSON"), 1440 * 60_000);
        assert_eq!(again.view(), ring.view());
        let mut early = Ring::new(60_000, 1440);
        early.restore(ring.stored(), 1439 * 60_000);
        assert!(early.rows.is_empty(), "rows of the future");
    }

    #[test]
    fn values_have_four_digits() {
        assert_eq!([123_456.0, 0.012_345_6, 0.0, 9999.9].map(rounded), [123_500.0, 0.012_35, 0.0, 10_000.0]);
        assert!(rounded(f64::NAN).is_nan());
    }

    #[test]
    fn damaged_file_is_told_and_a_missing_one_is_not() {
        let directory = std::env::temp_dir().join(format!("tenbin-past-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let past = Past::new(Some(&directory));
        assert!(matches!(past.read(), Ok(None)));
        for text in ["", "{", "[]", "{\"version\": 2}"] {
            std::fs::write(directory.join(FILE), text).expect("written");
            assert!(past.read().is_err(), "{text}");
        }
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
