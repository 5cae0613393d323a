//! Between the link's messages and the core.

use std::time::Duration;

use rollwright_core::fault::Fault;
use rollwright_core::gpu::{Degree, EngineId, Event, Footprint, Order, OrderId, Proof, Trouble};
use rollwright_proto::v1 as pb;

use super::config::GpuService;
use crate::fault::infrastructure;

pub(super) fn proof(proof: &pb::EngineProof) -> Proof {
    let pb::EngineProof { asleep, held_bytes: held, answers, movable } = *proof;
    Proof { asleep, held, answers, movable }
}

/// What an agent says is wrong; what this queue does not know counts as a death.
pub(super) fn trouble(of: pb::EngineTrouble) -> Trouble {
    use pb::engine_trouble::Kind;
    let (held, declared) = (of.held_bytes, of.declared_bytes);
    let order = order(of.order());
    match of.kind() {
        Kind::TimedOut => Trouble::TimedOut(order),
        Kind::SleepLied => Trouble::SleepLied,
        Kind::MemoryKept => Trouble::MemoryKept { held, declared },
        Kind::StillAsleep => Trouble::StillAsleep,
        Kind::NotLoaded => Trouble::NotLoaded { held },
        Kind::Outgrown => Trouble::Outgrown { held, declared },
        Kind::NoAnswer => Trouble::NoAnswer,
        Kind::Refused => Trouble::Refused(order, of.detail),
        Kind::Died | Kind::Unspecified => Trouble::Died(of.detail),
        Kind::GpuLost => Trouble::GpuLost,
        Kind::HostMemoryShort => Trouble::HostMemoryShort(of.detail),
        Kind::HostOutgrown => Trouble::HostOutgrown(of.detail),
        Kind::Unknown => Trouble::Unknown(of.detail),
        Kind::AgentLost => Trouble::AgentLost,
        Kind::Hung => Trouble::Hung,
    }
}

fn order(order: pb::engine_trouble::Order) -> Order {
    use pb::engine_trouble::Order as Wire;
    match order {
        Wire::Launch | Wire::Unspecified => Order::Launch,
        Wire::Wake => Order::Wake,
        Wire::Evict => Order::Evict,
        Wire::Stop => Order::Stop,
    }
}

/// An order's report as an event; `None` where it says nothing.
pub(super) fn report(report: pb::EngineReport) -> Option<Event> {
    use pb::engine_report::{Result as Said, What};
    let (engine, order) = (EngineId(report.engine), OrderId(report.order));
    let what = report.what();
    Some(match (what, report.result?) {
        (What::Restored, Said::Proof(proven)) => Event::Restored(engine, order, Ok(proof(&proven))),
        (What::Restored, Said::Trouble(of)) => Event::Restored(engine, order, Err(trouble(of))),
        (What::Evicted, Said::Proof(proven)) => Event::Evicted(engine, order, Ok(proof(&proven))),
        (What::Evicted, Said::Trouble(of)) => Event::Evicted(engine, order, Err(trouble(of))),
        (What::Stopped, Said::HeldBytes(held)) => Event::Stopped(engine, order, Ok(held)),
        (What::Stopped, Said::Trouble(of)) => Event::Stopped(engine, order, Err(trouble(of))),
        _ => return None,
    })
}

/// What is launched of a service at a degree.
pub(super) fn spec(service: &GpuService, degree: Degree) -> pb::EngineSpec {
    let footprint = service.core.degrees.get(&degree).map(|of: &Footprint| pb::EngineFootprint {
        device_bytes: of.device,
        residue_bytes: of.residue,
        host_bytes: of.host,
    });
    let service_id = service.core.name.clone();
    let degree = degree.gpus();
    pb::EngineSpec { service: service_id, degree, footprint, ..service.engine.clone() }
}

pub(super) fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

/// An answer that is no answer.
pub(super) fn lost() -> Fault {
    infrastructure("ReportLost", "the agent's report of the call's end is missing")
}
