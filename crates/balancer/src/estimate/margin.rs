//! The margin of a member's clock: how far its work may differ from the estimate.

/// Mean distance between the clock and the reports, and the margin that it calls for.
///
/// Work takes longer or shorter than its mean. So a member whose messages should be finished by now may still be busy,
/// and one that has been idle for longer is the better choice. A member that begins to work is therefore assumed to
/// finish later by a margin. It has no margin if its reports show that the clock is right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Margin {
    /// Mean error of the clock, in processing times.
    error: f64,
    /// Number of errors in the mean, with the assumed one.
    weight: f64,
    /// The margin in [`UNIT`]s of a processing time.
    units: u8,
}

impl Margin {
    /// The margin of a member whose reports are still to come.
    pub(super) const UNKNOWN: Self = Self { error: 1.0, weight: 1.0, units: MOST };
    /// No margin.
    pub(super) const NONE: Self = Self { error: 0.0, weight: 1.0, units: 0 };

    /// Takes the distance between the clock and the bounds of a report, in processing times.
    pub(super) fn sample(&mut self, error: f64) {
        self.weight = (self.weight + 1.0).min(ERROR_MEMORY);
        self.error += (error.min(ERROR_MAX) - self.error) / self.weight;
        self.units = (self.error * f64::from(UNIT)).min(f64::from(MOST)) as u8;
    }

    /// Returns the margin in [`UNIT`]s of a processing time.
    pub(super) fn in_units(self) -> u8 {
        self.units
    }

    /// Returns the margin in ns of a client that takes `processing_ns` for a message, `concurrency` at a time.
    pub(super) fn in_ns(self, processing_ns: u64, concurrency: u64) -> u64 {
        margin_ns(in_sixteenths(self.units, concurrency), processing_ns)
    }
}

/// Returns the margin of a member that takes `service_ns` of throughput for a message. `sixteenths`: [`in_sixteenths`].
#[inline(always)]
pub(crate) fn margin_ns(sixteenths: u32, service_ns: u64) -> u64 {
    // A processing time is below 2^44 ns, and 65,535 messages at a time have a margin below 2^19.
    (service_ns >> UNIT_SHIFT).wrapping_mul(sixteenths.into())
}

/// Returns the margin of a client that works on `concurrency` messages at a time, in sixteenths of the throughput's time
/// for a message.
///
/// A member of several threads has always the full margin. Its threads are seldom all busy, and the clock counts them
/// as one fast server.
pub(crate) fn in_sixteenths(units: u8, concurrency: u64) -> u32 {
    match concurrency {
        0 | 1 => units.into(),
        _ => u32::from(MOST) * concurrency.min(u16::MAX.into()) as u32,
    }
}

/// Units of a processing time.
const UNIT: u8 = 1 << UNIT_SHIFT;
const UNIT_SHIFT: u32 = 4;
/// Largest margin: half a processing time. It is also the margin of a member without reports.
pub(crate) const MOST: u8 = UNIT / 2;
/// A larger error counts as this.
const ERROR_MAX: f64 = 2.0;
/// Reports over which the error is averaged.
const ERROR_MEMORY: f64 = 16.0;
