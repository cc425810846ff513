//! The pure core of the chat appliance: no Python, no I/O, no clock.

pub mod attention;
pub mod prefix_index;
