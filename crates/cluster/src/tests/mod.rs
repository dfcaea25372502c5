//! Tests of the machine as a whole: a search of all short histories, and a simulation of long ones.

mod bits;
mod contract;
mod forced;
mod happening;
mod joins;
mod namesakes;
mod plant;
mod search;
mod simulation;
mod unfit;
mod wiped;
mod wires;
mod world;
