//! Faults and their parameters.

use serde::{Deserialize, Serialize};

use super::error::Complaints;
use super::fields::Fields;
use crate::units::{BitRate, Offset, Share, Size, Time, drift};

/// Declares all faults with their names in templates.
macro_rules! faults {
    ($($(#[$of:meta])* $fault:ident $({ $($(#[$one:meta])* $field:ident: $type:ty,)* })? = $name:literal,)*) => {
        /// A fault.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "fault")]
        pub enum Fault {
            $($(#[$of])* #[serde(rename = $name)] $fault $({ $($(#[$one])* $field: $type,)* })?,)*
        }

        /// All faults, a command of the user last.
        const NAMES: [&str; [$($name),*].len()] = [$($name),*];

        impl Fault {
            /// Name in templates.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$fault { .. } => $name,)* }
            }
        }
    };
}

faults! {
    /// SIGTERM, and SIGKILL if the process is still there after `grace`. It starts again at the end.
    Stop {
        /// Time to end by itself.
        grace: Time,
    } = "stop",
    /// SIGKILL of all processes of an instance. It starts again at the end.
    Kill = "kill",
    /// As [`Self::Stop`]; it starts again at once, or at the end.
    Restart {
        /// Time to end by itself.
        grace: Time,
    } = "restart",
    /// SIGSTOP of all processes of an instance, and SIGCONT at the end.
    Pause = "pause",
    /// One of [`Self::Kill`], [`Self::Pause`] and [`Self::NetPartition`], drawn by the seed for each repetition.
    Failover = "failover",
    /// Frames of a link arrive later.
    NetDelay {
        /// Time that each frame is held.
        delay: Time,
        /// Greatest deviation, to both sides.
        jitter: Time,
    } = "net.delay",
    /// A link drops packets.
    NetLoss {
        /// Share of packets that are dropped.
        loss: Share,
    } = "net.loss",
    /// A link delivers packets twice.
    NetDuplicate {
        /// Share of packets that arrive twice.
        duplicate: Share,
    } = "net.duplicate",
    /// A link inverts a bit of packets.
    NetCorrupt {
        /// Share of packets that are damaged.
        corrupt: Share,
    } = "net.corrupt",
    /// Packets of a link overtake each other.
    NetReorder {
        /// Time that each frame is held.
        delay: Time,
        /// Greatest deviation, to both sides.
        jitter: Time,
    } = "net.reorder",
    /// A link has a limited throughput.
    NetRate {
        /// The limit.
        rate: BitRate,
        /// Bytes that may wait; a packet beyond them is dropped.
        queue: Size,
    } = "net.rate",
    /// A link passes nothing.
    NetPartition = "net.partition",
    /// Processes that compute, beside an instance.
    CpuLoad {
        /// Number of threads.
        threads: u32,
        /// Share of time for which each computes.
        share: Share,
    } = "cpu.load",
    /// A process that keeps memory in use, beside an instance.
    MemoryLoad {
        /// Bytes that it touches.
        bytes: Size,
    } = "memory.load",
    /// Writers that sync each write, beside an instance.
    DiskLoad {
        /// Number of writers.
        threads: u32,
        /// Bytes of a write.
        size: Size,
    } = "disk.load",
    /// Limit of an instance's processor time.
    CpuLimit {
        /// Processors that it may use: 50% is half of one.
        share: Share,
    } = "cpu.limit",
    /// Limit of an instance's memory.
    MemoryLimit {
        /// The limit.
        bytes: Size,
    } = "memory.limit",
    /// A file fills the filesystem of an instance's data.
    DiskFull {
        /// Bytes that stay free.
        leave: Size,
    } = "disk.full",
    /// The power of a machine fails: unsynced data is gone. It starts again at the end.
    PowerCut = "power_cut",
    /// An instance's clock is wrong.
    ClockSkew {
        /// Difference to the right time.
        by: Offset,
        /// Parts of a million by which it runs faster.
        drift_ppm: f64,
    } = "clock.skew",
    /// A command of the user.
    Command {
        /// Starts the fault.
        command: String,
        /// Ends it.
        undo: Option<String>,
    } = "command",
}

/// Objects that a fault changes, and so its kind of targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Processes of instances.
    Instances,
    /// Links between instances.
    Links,
}

/// All faults that the tool makes itself.
pub(crate) const FAULTS: [&str; NAMES.len() - 1] = {
    let [faults @ .., _] = NAMES;
    faults
};

const GRACE: Time = Time::from_secs(10);
const QUEUE: Size = Size::new(256 * 1024);

impl Fault {
    /// Reads the parameters of the fault `name`; `None` if the name or a parameter is wrong.
    pub(crate) fn read(name: &str, fields: &mut Fields<'_>, complaints: &mut Complaints) -> Option<Self> {
        let grace =
            |fields: &mut Fields<'_>, complaints: &mut Complaints| fields.value("grace", complaints).unwrap_or(GRACE);
        Some(match name {
            "stop" => Self::Stop { grace: grace(fields, complaints) },
            "kill" => Self::Kill,
            "restart" => Self::Restart { grace: grace(fields, complaints) },
            "pause" => Self::Pause,
            "failover" => Self::Failover,
            "net.delay" => Self::NetDelay {
                delay: fields.required("delay", complaints)?,
                jitter: fields.value("jitter", complaints).unwrap_or_default(),
            },
            "net.loss" => Self::NetLoss { loss: fields.required("loss", complaints)? },
            "net.duplicate" => Self::NetDuplicate { duplicate: fields.required("duplicate", complaints)? },
            "net.corrupt" => Self::NetCorrupt { corrupt: fields.required("corrupt", complaints)? },
            "net.reorder" => {
                let jitter = fields.required("jitter", complaints);
                Self::NetReorder { delay: fields.value("delay", complaints).or(jitter)?, jitter: jitter? }
            }
            "net.rate" => Self::NetRate {
                rate: fields.required("rate", complaints)?,
                queue: fields.value("queue", complaints).unwrap_or(QUEUE),
            },
            "net.partition" => Self::NetPartition,
            "cpu.load" => Self::CpuLoad {
                threads: fields.count("threads", 1024, complaints).unwrap_or(1),
                share: fields.value("share", complaints).unwrap_or(Share::WHOLE),
            },
            "memory.load" => Self::MemoryLoad { bytes: fields.required("bytes", complaints)? },
            "disk.load" => Self::DiskLoad {
                threads: fields.count("threads", 1024, complaints).unwrap_or(1),
                size: fields.value("size", complaints).unwrap_or(Size::new(64 * 1024)),
            },
            "cpu.limit" => Self::CpuLimit { share: fields.required("share", complaints)? },
            "memory.limit" => Self::MemoryLimit { bytes: fields.required("bytes", complaints)? },
            "disk.full" => Self::DiskFull { leave: fields.value("leave", complaints).unwrap_or_default() },
            "power_cut" => Self::PowerCut,
            "clock.skew" => Self::clock_skew(fields, complaints),
            "command" => Self::Command {
                command: fields.required("command", complaints)?,
                undo: fields.value("undo", complaints),
            },
            _ => return None,
        })
    }

    fn clock_skew(fields: &mut Fields<'_>, complaints: &mut Complaints) -> Self {
        let by = fields.value("by", complaints);
        let drift_ppm = fields.parsed("drift", complaints, drift);
        if fields.node("by").is_none() && fields.node("drift").is_none() {
            fields.missing("by", complaints);
        }
        Self::ClockSkew { by: by.unwrap_or_default(), drift_ppm: drift_ppm.unwrap_or_default() }
    }

    /// Kind of targets.
    pub fn scope(&self) -> Scope {
        if self.name().starts_with("net.") { Scope::Links } else { Scope::Instances }
    }

    /// True if the fault is over by itself at once when it has no duration.
    pub fn is_momentary(&self) -> bool {
        matches!(self, Self::Restart { .. } | Self::Command { undo: None, .. })
    }

    /// True if a missing duration leaves the instance stopped for good.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Stop { .. } | Self::Kill | Self::PowerCut)
    }
}

/// A fault with the name `name` and harmless parameters, to ask which runtimes support it.
pub(crate) fn example(name: &str) -> Option<Fault> {
    let text =
        "{ delay: 1ms, jitter: 1ms, loss: 0, duplicate: 0, corrupt: 0, rate: 1Mbit/s, bytes: 1MiB, share: 1, by: 1s }";
    let mut complaints = Complaints::new("");
    let node = super::node::YamlNode::parse(text, &mut complaints)?;
    Fault::read(name, &mut Fields::of(&node, name, &mut complaints)?, &mut complaints)
}
