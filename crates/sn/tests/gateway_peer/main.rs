//! One client at the gateway, in virtual time: an area of the protocol per file.

mod addresses;
mod connecting;
mod credentials;
mod delivering;
mod model;
mod publishing;
mod registering;
mod retrying;
mod rig;
mod sleeping;
mod subscribing;
mod wills;
