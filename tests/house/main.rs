//! The house itself: layers and prose.

mod layers;
mod plain_english;
