//! What the store holds, as protobuf: fields may be added, never reused.

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
    #[prost(message, optional, tag = "5")]
    pub(crate) call: Option<CallAnswer>,
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
