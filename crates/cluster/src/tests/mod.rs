//! Tests of the machine as a whole: a search of all short histories, and a simulation of long ones.

mod bits;
mod contract;
mod happening;
mod plant;
mod search;
mod simulation;
mod wires;
mod world;
