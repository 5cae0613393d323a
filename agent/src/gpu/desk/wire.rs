//! Between the link's messages and what the driver knows.

use rollwright_core::gpu::{Chunk, Degree, EngineId, Order, OrderId, Proof, Trouble};
use rollwright_proto::v1 as pb;

use crate::gpu::spec::{EngineKind, EngineSpec, EvictBy, Needs, Probe};

fn refused(why: impl Into<String>) -> Trouble {
    Trouble::Refused(Order::Launch, why.into())
}

/// What is to be launched, checked as far as a form can be.
pub(super) fn spec(spec: pb::EngineSpec) -> Result<EngineSpec, Trouble> {
    use pb::engine_spec::{Engine, Evict};
    let engine = match spec.engine() {
        Engine::Vllm => EngineKind::Vllm,
        Engine::Sglang => EngineKind::Sglang,
        Engine::Other => EngineKind::Other,
        Engine::Unspecified => return Err(refused("this agent does not know its kind of engine")),
    };
    let evict = match spec.evict() {
        Evict::EngineSleep => EvictBy::EngineSleep,
        Evict::HostPinned => EvictBy::HostPinned,
        Evict::CudaCheckpoint => EvictBy::CudaCheckpoint,
        Evict::Unspecified => return Err(refused("this agent does not know its way to evict")),
    };
    let probe = spec.probe.map(|probe| {
        let body = serde_json::from_str(&probe.body);
        let body =
            body.map_err(|error| refused(format!("its probe's body is no JSON: {error}")))?;
        Ok(Probe { path: probe.path, body })
    });
    let footprint = spec.footprint.unwrap_or_default();
    Ok(EngineSpec {
        service: spec.service,
        engine,
        image: Some(spec.image).filter(|image| !image.is_empty()),
        args: spec.args,
        env: spec.env.into_iter().collect(),
        model: spec.model,
        served_name: spec.served_name,
        degree: spec.degree,
        evict,
        probe: probe.transpose()?,
        footprint: Needs {
            device: footprint.device_bytes,
            residue: footprint.residue_bytes,
            host: footprint.host_bytes,
        },
    })
}

/// The GPUs of an engine.
pub(super) fn chunk(first: u32, degree: u32) -> Result<Chunk, Trouble> {
    let degree = Degree::new(degree).map_err(|error| refused(error.to_string()))?;
    let chunk = Chunk::new(0, first, degree);
    chunk.ok_or_else(|| refused(format!("GPU {first} is no place for {degree} aligned GPUs")))
}

pub(super) fn proof(proof: Proof) -> pb::EngineProof {
    let Proof { asleep, held: held_bytes, answers, movable } = proof;
    pb::EngineProof { asleep, held_bytes, answers, movable }
}

pub(super) fn restored(
    engine: EngineId,
    order: OrderId,
    result: Result<Proof, Trouble>,
) -> pb::EngineReport {
    proven(pb::engine_report::What::Restored, engine, order, result)
}

pub(super) fn evicted(
    engine: EngineId,
    order: OrderId,
    result: Result<Proof, Trouble>,
) -> pb::EngineReport {
    proven(pb::engine_report::What::Evicted, engine, order, result)
}

fn proven(
    what: pb::engine_report::What,
    engine: EngineId,
    order: OrderId,
    result: Result<Proof, Trouble>,
) -> pb::EngineReport {
    use pb::engine_report::Result as Said;
    let said = match result {
        Ok(of) => Said::Proof(proof(of)),
        Err(of) => Said::Trouble(trouble(&of)),
    };
    pb::EngineReport { engine: engine.0, order: order.0, what: what.into(), result: Some(said) }
}

pub(super) fn stopped(
    engine: EngineId,
    order: OrderId,
    result: Result<u64, Trouble>,
) -> pb::EngineReport {
    use pb::engine_report::{Result as Said, What};
    let said = match result {
        Ok(held) => Said::HeldBytes(held),
        Err(of) => Said::Trouble(trouble(&of)),
    };
    let what = What::Stopped.into();
    pb::EngineReport { engine: engine.0, order: order.0, what, result: Some(said) }
}

pub(super) fn trouble(of: &Trouble) -> pb::EngineTrouble {
    use pb::engine_trouble::Kind;
    let mut wire = pb::EngineTrouble::default();
    let kind = match of {
        Trouble::TimedOut(what) => {
            wire.order = order(*what).into();
            Kind::TimedOut
        }
        Trouble::SleepLied => Kind::SleepLied,
        Trouble::MemoryKept { held, declared } => {
            (wire.held_bytes, wire.declared_bytes) = (*held, *declared);
            Kind::MemoryKept
        }
        Trouble::StillAsleep => Kind::StillAsleep,
        Trouble::NotLoaded { held } => {
            wire.held_bytes = *held;
            Kind::NotLoaded
        }
        Trouble::Outgrown { held, declared } => {
            (wire.held_bytes, wire.declared_bytes) = (*held, *declared);
            Kind::Outgrown
        }
        Trouble::NoAnswer => Kind::NoAnswer,
        Trouble::Refused(what, why) => {
            wire.order = order(*what).into();
            wire.detail.clone_from(why);
            Kind::Refused
        }
        Trouble::Died(why) => {
            wire.detail.clone_from(why);
            Kind::Died
        }
        Trouble::GpuLost => Kind::GpuLost,
        Trouble::HostMemoryShort(why) => {
            wire.detail.clone_from(why);
            Kind::HostMemoryShort
        }
        Trouble::HostOutgrown(why) => {
            wire.detail.clone_from(why);
            Kind::HostOutgrown
        }
        Trouble::Unknown(why) => {
            wire.detail.clone_from(why);
            Kind::Unknown
        }
        Trouble::AgentLost => Kind::AgentLost,
        Trouble::Hung => Kind::Hung,
    };
    wire.kind = kind.into();
    wire
}

fn order(order: Order) -> pb::engine_trouble::Order {
    use pb::engine_trouble::Order as Wire;
    match order {
        Order::Launch => Wire::Launch,
        Order::Wake => Wire::Wake,
        Order::Evict => Wire::Evict,
        Order::Stop => Wire::Stop,
    }
}
