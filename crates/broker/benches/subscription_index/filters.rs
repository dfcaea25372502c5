//! What is subscribed to, and what is published. A plant: sites with lines with sensors, each of which tells one quantity.

use tenbin_codec::{TopicFilter, TopicName};

/// Which filters there are.
#[derive(Clone, Copy)]
pub(crate) struct Plant {
    /// Filters without wildcards, one for each sensor.
    pub(crate) exact: u64,
    pub(crate) wildcards: u64,
}

/// Filters with wildcards that match what a sensor of a watched line publishes: exactly one of each form.
pub(crate) const FORMS: u64 = 10;

impl Plant {
    /// What one filter takes.
    pub(crate) fn exact(&self, sensor: u64) -> String {
        self.unwatched(sensor, quantity(sensor))
    }

    /// What no filter takes: everything but its last level is as in others.
    pub(crate) fn nobodys(&self, sensor: u64) -> String {
        self.unwatched(sensor, "speed")
    }

    fn unwatched(&self, sensor: u64, quantity: &str) -> String {
        format!("site/{}/line/{}/sensor/{sensor}/{quantity}", site(sensor), sensor / SITES % LINES)
    }

    /// What [`FORMS`] filters with wildcards take, and no other.
    pub(crate) fn watched(&self, sensor: u64) -> String {
        let (site, line, quantity, number) = (site(sensor), line(sensor), quantity(sensor), watched_number(sensor));
        format!("site/{site}/line/{line}/sensor/{number}/{quantity}")
    }

    /// Sensors of watched lines that have filters of their own.
    pub(crate) fn sensors(&self) -> u64 {
        let of_places = LINES * (2 + QUANTITIES.len() as u64) + SITES * LINES * (2 + QUANTITIES.len() as u64);
        self.wildcards.saturating_sub(of_places) / 4
    }

    /// Calls `subscribe` with every filter that has wildcards, and its form.
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
        // What is over: prefixes that nothing here is published below.
        for area in count..self.wildcards {
            subscribe(0, format!("area/{area}/#"));
        }
    }

    /// A filter with wildcards; of sensors from [`Plant::sensors`] on, no session has it.
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

/// Those of watched lines have numbers of their own.
fn watched_number(sensor: u64) -> u64 {
    WATCHED + sensor
}

fn site(sensor: u64) -> u64 {
    sensor % SITES
}

/// Watched lines come behind the others.
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
