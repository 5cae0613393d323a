//! Faults around a real gateway process: engines that die and come back, the gateway killed
//! and started twice, clients that are slow. Engines and the reward service are simulators.

mod clients;
mod engines;
mod kills;
