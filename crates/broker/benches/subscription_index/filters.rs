//! Filters and topics of a plant: sites with lines with sensors; each sensor reports one quantity.

use tenbin_codec::{TopicFilter, TopicName};

/// Numbers of filters.
#[derive(Clone, Copy)]
pub(crate) struct Plant {
    /// Filters without wildcards, one for each sensor.
    pub(crate) exact: u64,
    pub(crate) wildcards: u64,
}

/// Filters with wildcards that match a topic of a watched line: exactly one of each form.
pub(crate) const FORMS: u64 = 10;

impl Plant {
    /// Topic that exactly one filter matches.
    pub(crate) fn exact(&self, sensor: u64) -> String {
        self.unwatched(sensor, quantity(sensor))
    }

    /// Topic that no filter matches; it differs from matched ones only in its last level.
    pub(crate) fn nobodys(&self, sensor: u64) -> String {
        self.unwatched(sensor, "speed")
    }

    fn unwatched(&self, sensor: u64, quantity: &str) -> String {
        format!("site/{}/line/{}/sensor/{sensor}/{quantity}", site(sensor), sensor / SITES % LINES)
    }

    /// Topic that exactly [`FORMS`] filters match, all with wildcards.
    pub(crate) fn watched(&self, sensor: u64) -> String {
        let (site, line, quantity, number) = (site(sensor), line(sensor), quantity(sensor), watched_number(sensor));
        format!("site/{site}/line/{line}/sensor/{number}/{quantity}")
    }

    /// Number of sensors on watched lines that have separate filters.
    pub(crate) fn sensors(&self) -> u64 {
        let of_places = LINES * (2 + QUANTITIES.len() as u64) + SITES * LINES * (2 + QUANTITIES.len() as u64);
        self.wildcards.saturating_sub(of_places) / 4
    }

    /// Calls `subscribe` with each filter with wildcards and its form.
    pub(crate) fn each_wildcard(&self, mut subscribe: impl FnMut(u64, String)) {
        let mut count = 0;
        let mut add = |form, filter| {
            count += 1;
            subscribe(form, filter);
        };
        for line in (0..LINES).map(|line| LINES + line) {
            add(0, format!("site/+/line/{line}/#"));
            add(1, format!("site/+/+/{line}/sensor/#"));
            QUANTITIES.iter().for_each(|quantity| add(2, format!("site/+/line/{line}/sensor/+/{quantity}")));
            for site in 0..SITES {
                add(3, format!("site/{site}/line/{line}/#"));
                add(4, format!("site/{site}/+/{line}/#"));
                QUANTITIES.iter().for_each(|quantity| add(5, format!("site/{site}/line/{line}/sensor/+/{quantity}")));
            }
        }
        for sensor in 0..self.sensors() {
            let (site, line, quantity, number) = (site(sensor), line(sensor), quantity(sensor), watched_number(sensor));
            add(6, self.of_sensor(sensor));
            add(7, format!("site/{site}/line/{line}/sensor/{number}/+"));
            add(8, format!("site/{site}/line/+/sensor/{number}/{quantity}"));
            add(9, format!("site/+/line/+/sensor/{number}/#"));
        }
        // Further filters have prefixes without any topic.
        for area in count..self.wildcards {
            subscribe(0, format!("area/{area}/#"));
        }
    }

    /// Filter with wildcards for one sensor; no session has it for sensors from [`Plant::sensors`] on.
    pub(crate) fn of_sensor(&self, sensor: u64) -> String {
        format!("site/{}/+/+/sensor/{}/+", site(sensor), watched_number(sensor))
    }
}

pub(crate) fn topic(text: String) -> TopicName {
    TopicName::try_from(text.as_str()).expect("a legal topic")
}

pub(crate) fn filter(text: String) -> TopicFilter {
    TopicFilter::try_from(text.as_str()).expect("a legal filter")
}

/// Number of a sensor on a watched line; these do not overlap with other sensors.
fn watched_number(sensor: u64) -> u64 {
    WATCHED + sensor
}

fn site(sensor: u64) -> u64 {
    sensor % SITES
}

/// Watched lines have higher numbers than the others.
fn line(sensor: u64) -> u64 {
    LINES + sensor / SITES % LINES
}

fn quantity(sensor: u64) -> &'static str {
    QUANTITIES[(sensor / (SITES * LINES)) as usize % QUANTITIES.len()]
}

const SITES: u64 = 200;
const LINES: u64 = 10;
const WATCHED: u64 = 5_000_000;
const QUANTITIES: [&str; 4] = ["temperature", "pressure", "humidity", "vibration"];
