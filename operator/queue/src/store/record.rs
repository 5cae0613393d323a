//! What the store holds, as protobuf: fields may be added, never reused.

use bytes::Bytes;
use rollwright_proto::v1 as pb;

/// An accepted action that has not ended.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Accepted {
    #[prost(string, tag = "1")]
    pub(crate) job: String,
    /// Unix nanoseconds.
    #[prost(uint64, tag = "2")]
    pub(crate) submitted: u64,
    /// As resolved with the profile's defaults.
    #[prost(message, optional, tag = "3")]
    pub(crate) request: Option<pb::ExecuteRequest>,
}

/// What was learned of the actions of one job and profile.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Profile {
    #[prost(string, tag = "1")]
    pub(crate) job: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    /// Unix nanoseconds of this record: the latest used are known best.
    #[prost(uint64, tag = "3")]
    pub(crate) at: u64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) levels: Vec<Level>,
    /// Buckets of the sketch of durations, and the count of each.
    #[prost(sint32, repeated, tag = "5")]
    pub(crate) buckets: Vec<i32>,
    #[prost(float, repeated, tag = "6")]
    pub(crate) counts: Vec<f32>,
    /// Mean part of a core that is used, and of how many; 0: not known.
    #[prost(double, tag = "7")]
    pub(crate) cores_used: f64,
    #[prost(double, tag = "8")]
    pub(crate) cores_used_of: f64,
}

/// Durations on the same units.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Level {
    /// Cores.
    #[prost(double, tag = "1")]
    pub(crate) units: f64,
    #[prost(double, tag = "2")]
    pub(crate) weight: f64,
    /// Seconds.
    #[prost(double, tag = "3")]
    pub(crate) mean: f64,
}

/// An ended action.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Ended {
    #[prost(string, tag = "1")]
    pub(crate) job: String,
    #[prost(string, tag = "2")]
    pub(crate) trajectory: String,
    /// Unix nanoseconds.
    #[prost(uint64, tag = "3")]
    pub(crate) at: u64,
    /// `started`, `output` and the final event, in order, without the action's id.
    #[prost(message, repeated, tag = "4")]
    pub(crate) events: Vec<pb::ActionEvent>,
    /// Of a call of a reward service: its answer.
    #[prost(message, optional, boxed, tag = "5")]
    pub(crate) call: Option<Box<CallAnswer>>,
}

/// The answer of a call.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CallAnswer {
    /// The reward service's id at the queue.
    #[prost(string, tag = "1")]
    pub(crate) service: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) response: Option<pb::CallResponse>,
    /// Where there was none.
    #[prost(message, optional, tag = "3")]
    pub(crate) fault: Option<pb::Fault>,
    /// Of what was asked; empty: not known.
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) digest: Bytes,
}

/// A call that an agent was, or is about to be, told to make, and that has no answer yet.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StartedCall {
    #[prost(string, tag = "1")]
    pub(crate) job: String,
    /// The reward service's id at the queue.
    #[prost(string, tag = "2")]
    pub(crate) service: String,
    /// Of what was asked.
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) digest: Bytes,
    #[prost(string, tag = "4")]
    pub(crate) node: String,
    #[prost(uint64, tag = "5")]
    pub(crate) engine: u64,
    /// GPUs of the engine.
    #[prost(uint32, tag = "6")]
    pub(crate) degree: u32,
    /// Unix nanoseconds.
    #[prost(uint64, tag = "7")]
    pub(crate) submitted: u64,
    /// Unix nanoseconds.
    #[prost(uint64, tag = "8")]
    pub(crate) began: u64,
    /// Nanoseconds in which its engine was being made resident for it.
    #[prost(uint64, tag = "9")]
    pub(crate) restored_for: u64,
}

/// A trajectory that is open, or on its way in or out.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Trajectory {
    #[prost(string, tag = "1")]
    pub(crate) job: String,
    /// What its sandbox was made from, with the request's environment.
    #[prost(message, optional, tag = "2")]
    pub(crate) spec: Option<pb::SandboxSpec>,
    /// Node that was chosen; empty: none yet.
    #[prost(string, tag = "3")]
    pub(crate) node: String,
    /// Its caller has closed it.
    #[prost(bool, tag = "4")]
    pub(crate) closing: bool,
    /// Unix nanoseconds by which it must be ready; 0: no limit.
    #[prost(uint64, tag = "5")]
    pub(crate) open_by: u64,
    /// Its sandbox was ready once: if it is gone, so is what was in it.
    #[prost(bool, tag = "6")]
    pub(crate) was_ready: bool,
}
