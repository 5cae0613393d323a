//! An action as the core's policies know it.

use rollwright_core::elastic::{Demand, Work};
use rollwright_core::resources::{UnitChoice, Units};
use rollwright_core::time::Time;

use crate::cluster::Service;
use crate::workload::{Action, UNIT};

/// Most units that the core gives one action.
pub(crate) const MOST_UNITS: u64 = 4096;

/// Its choices, those above [`MOST_UNITS`] left out; `None` where none is left.
pub(crate) fn work(action: &Action) -> Option<Work> {
    let usable = action.units.iter().filter(|&&units| units <= MOST_UNITS * UNIT);
    let choice = UnitChoice::new(usable.map(|&given| units(given)).collect()).ok()?;
    Work::amdahl(&choice, action.duration, action.serial).ok()
}

/// Millionths, as the core counts them; at most [`MOST_UNITS`].
pub(crate) fn units(millionths: u64) -> Units {
    let units = millionths.clamp(1, MOST_UNITS * UNIT) as f64 / UNIT as f64;
    Units::from_f64(units).unwrap_or(Units::cores(1))
}

/// The core's units in millionths.
pub(crate) fn millionths(units: Units) -> u64 {
    u64::from(units.micros())
}

/// Nanoseconds as an instant of the core.
pub(crate) fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// The service of a GPU action.
pub(crate) fn demand(action: &Action, services: &[Service]) -> Demand {
    let service = action.service.unwrap_or(0);
    let restore = services.get(service).map_or(0, |service| service.restore);
    Demand { service, restore: restore as f64 / 1e9 }
}
