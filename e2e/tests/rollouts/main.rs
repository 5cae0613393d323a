//! Rollouts through a real gateway process: aborts, weight updates in the middle of turns,
//! evaluations, and a trainer that does not do its part. Engines and the reward service are
//! simulators; queue, agent and Docker are real.

mod aborts;
mod trainers;
mod weights;
