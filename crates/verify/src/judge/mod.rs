//! Judgement of a run: phases by the faults' actual times, figures of each phase, and assertions on them.

pub mod assertion;
pub mod figure;
pub mod leaders;
pub mod measured;
pub mod recovery;
pub mod windows;
