//! Nodes whose agent is about to end: nothing new starts there, what runs ends first.

use pb::queue_message::Message as ToAgent;
use rollwright_core::gpu::Event;
use rollwright_core::ids::NodeId;
use rollwright_proto::v1 as pb;

use super::actor::Gpu;
use super::pool::{Leaving, Node};

impl Gpu {
    /// An agent says that it will end. Where its engines stay for the next one, the node is
    /// for the core as one whose link is gone: their state is kept, and nothing is ordered.
    pub(super) fn leaving(&mut self, at: usize, node: &NodeId, with_engines: bool) {
        let Some(known) = self.pools[at].nodes.get_mut(node) else { return };
        tracing::info!(%node, with_engines, "its agent is about to end");
        let event = if with_engines {
            known.leaving = Some(Leaving::Draining);
            Event::Drain { node: node.clone(), on: true }
        } else {
            known.leaving = Some(Leaving::Alone);
            Event::Left(node.clone())
        };
        self.events.push_back((at, event));
        self.work();
        self.release_if_done(at, node);
    }

    /// An agent of the node is here to stay.
    pub(super) fn stays(&mut self, at: usize, node: &NodeId) {
        self.events.push_back((at, Event::Drain { node: node.clone(), on: false }));
    }

    /// No engine is left on a node that is leaving with its engines.
    pub(super) fn drained(&mut self, at: usize, node: &NodeId) {
        let known = self.pools[at].nodes.get_mut(node);
        if let Some(leaving) = known.and_then(|known| known.leaving.as_mut()) {
            *leaving = Leaving::Drained;
        }
        self.release_if_done(at, node);
    }

    /// The core knows nothing of a node any more.
    pub(super) fn forgotten(&mut self, at: usize, node: &NodeId) {
        let nodes = &mut self.pools[at].nodes;
        // One that is about to end, and is still here, is told so yet.
        if nodes.get(node).is_some_and(|known| !known.linked) {
            nodes.remove(node);
            tracing::info!(%node, "a node that stayed away is forgotten");
        }
        self.pools[at].tidy();
    }

    /// Lets an agent end that said that it will, once nothing is left there.
    pub(super) fn release_if_done(&mut self, at: usize, node: &NodeId) {
        let of = |known: &Node| matches!(known.leaving, Some(Leaving::Alone | Leaving::Drained));
        if !self.pools[at].nodes.get(node).is_some_and(of) || !self.calls_on(node).is_empty() {
            return;
        }
        if let Some(known) = self.pools[at].nodes.get_mut(node) {
            known.leaving = None;
        }
        self.send(node, ToAgent::Released(pb::Released {}));
    }
}
