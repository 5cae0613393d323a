//! Weights: their version, loading from disk, and the steps of a transfer.

use std::path::Path;

use serde::Deserialize;

use super::{Engine, Refusal, State};
use crate::ledger::{Ledger, ViolationKind};

/// The weights that generate.
#[derive(Debug, Clone)]
pub(super) struct Weights {
    version: u64,
    label: String,
    /// The last update named no version: a label given later is the version.
    unnamed: bool,
    discarded: bool,
    transfer: Transfer,
    reported: bool,
}

/// The steps of a transfer in vLLM: init once, then start, update (several), finish. In
/// SGLang a group is initialised, each update stands alone, and the group is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transfer {
    None,
    Ready,
    Started { updates: u32 },
}

/// What was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) version: u64,
    pub(crate) label: String,
}

#[derive(Debug, Deserialize)]
struct VersionFile {
    version: u64,
}

impl Weights {
    pub(super) fn new(version: u64) -> Self {
        Self {
            version,
            label: version.to_string(),
            unnamed: false,
            discarded: false,
            transfer: Transfer::None,
            reported: false,
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn discarded(&self) -> bool {
        self.discarded
    }

    pub(super) fn discard(&mut self) {
        self.discarded = true;
        self.reported = false;
    }

    pub(super) fn updating(&self) -> bool {
        matches!(self.transfer, Transfer::Started { .. })
    }

    /// Records, once, that tokens come out of weights that are not there, or half there.
    pub(super) fn check_generation(&mut self, ledger: &mut Ledger, request: &str) {
        let (kind, detail) = if self.discarded {
            let detail = "generated after sleep level 2 without a reload of the weights";
            (ViolationKind::DiscardedWeights, detail)
        } else if self.updating() {
            (ViolationKind::ResumeDuringUpdate, "generated in the middle of a transfer of weights")
        } else {
            return;
        };
        if !self.reported {
            self.reported = true;
            ledger.violate(kind, Some(request), detail.into());
        }
    }

    /// New weights are in place.
    fn set(&mut self, version: Option<u64>, label: Option<String>) {
        self.unnamed = version.is_none();
        self.version = version.unwrap_or(self.version + 1);
        self.label = label.unwrap_or_else(|| self.version.to_string());
        self.discarded = false;
    }

    fn name(&mut self, label: String) {
        if let Some(version) = version_of_label(&label)
            && self.unnamed
        {
            self.version = version;
        }
        self.label = label;
    }
}

/// The number at the end of a label: `7`, `step-7`.
fn version_of_label(label: &str) -> Option<u64> {
    let digits = label.len() - label.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    label[label.len() - digits..].parse().ok()
}

impl Engine {
    /// The label of the weights, as callers named them.
    pub(crate) fn weight_label(&self) -> String {
        self.lock().weights.label.clone()
    }

    /// The version that generates now.
    pub(crate) fn version(&self) -> u64 {
        self.lock().weights.version
    }

    /// Loads from `path`, which must exist. The version is that of `version.json`
    /// (`{"version": n}`) in it or at it, else the label's, else one more than before.
    /// With `flush`, the cache is emptied after.
    pub(crate) async fn load_from(
        &self,
        path: &str,
        label: Option<String>,
        flush: bool,
    ) -> Result<Loaded, Refusal> {
        self.lock().may_update("weights from disk")?;
        let named = read_version(Path::new(path)).await?;
        tokio::time::sleep(self.config.latency.load).await;
        let mut state = self.lock();
        state.may_update("weights from disk")?;
        if flush {
            state.flush()?;
        }
        let version = named.or_else(|| label.as_deref().and_then(version_of_label));
        state.weights.set(version, label);
        Ok(Loaded { version: state.weights.version, label: state.weights.label.clone() })
    }

    /// `reload_weights` without a path: the same weights again, after they were discarded.
    pub(crate) fn reload(&self) -> Result<(), Refusal> {
        let mut state = self.lock();
        state.may_update("a reload of the weights")?;
        state.weights.discarded = false;
        Ok(())
    }

    /// vLLM's `/init_weight_transfer_engine`, SGLang's `/init_weights_update_group`.
    pub(crate) fn transfer_init(&self) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.weights.updating() {
            return Err(state.out_of_order("initialised in the middle of a transfer"));
        }
        state.weights.transfer = Transfer::Ready;
        Ok(())
    }

    /// vLLM's `/start_weight_update`.
    pub(crate) fn transfer_start(&self) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.weights.transfer != Transfer::Ready {
            return Err(state.out_of_order("started, but not initialised or started already"));
        }
        state.may_update("a transfer of weights")?;
        state.weights.transfer = Transfer::Started { updates: 0 };
        state.weights.reported = false;
        Ok(())
    }

    /// vLLM's `/update_weights`.
    pub(crate) async fn transfer_update(&self) -> Result<(), Refusal> {
        {
            let mut state = self.lock();
            let Transfer::Started { updates } = state.weights.transfer else {
                return Err(state.out_of_order("an update of weights that was not started"));
            };
            state.may_update("a transfer of weights")?;
            state.weights.transfer = Transfer::Started { updates: updates + 1 };
        }
        tokio::time::sleep(self.config.latency.load).await;
        Ok(())
    }

    /// vLLM's `/finish_weight_update`.
    pub(crate) fn transfer_finish(&self, label: Option<String>) -> Result<(), Refusal> {
        let mut state = self.lock();
        match state.weights.transfer {
            Transfer::Started { updates: 1.. } => {}
            Transfer::Started { updates: 0 } => {
                return Err(state.out_of_order("finished without an update"));
            }
            _ => return Err(state.out_of_order("finished, but not started")),
        }
        state.may_update("a transfer of weights")?;
        state.weights.transfer = Transfer::Ready;
        let version = label.as_deref().and_then(version_of_label);
        state.weights.set(version, label);
        Ok(())
    }

    /// SGLang's `/update_weights_from_distributed` and `_from_tensor`: one bucket. The
    /// weights are new with the bucket that carries a label.
    pub(crate) async fn bucket(
        &self,
        label: Option<String>,
        flush: bool,
        needs_group: bool,
    ) -> Result<(), Refusal> {
        {
            let mut state = self.lock();
            if needs_group && state.weights.transfer != Transfer::Ready {
                return Err(state.out_of_order("an update before init_weights_update_group"));
            }
            state.may_update("a bucket of weights")?;
        }
        tokio::time::sleep(self.config.latency.load).await;
        let mut state = self.lock();
        state.may_update("a bucket of weights")?;
        if flush {
            state.flush()?;
        }
        if let Some(label) = label {
            state.weights.set(version_of_label(&label), Some(label));
        }
        Ok(())
    }

    /// SGLang's `/destroy_weights_update_group`.
    pub(crate) fn transfer_destroy(&self) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.weights.transfer == Transfer::None {
            return Err(state.out_of_order("destroyed a group that was never made"));
        }
        state.weights.transfer = Transfer::None;
        Ok(())
    }

    /// `/update_weight_version`: a label; the version too, when the last update had none.
    pub(crate) fn name_weights(&self, label: String) {
        self.lock().weights.name(label);
    }
}

impl State {
    /// Weights change only while nothing decodes and they are in memory.
    fn may_update(&mut self, what: &str) -> Result<(), Refusal> {
        let draining = matches!(self.pause, Some(super::Pause::Wait { .. }));
        if !self.idle() && (self.pause.is_none() || draining) {
            let detail = format!(
                "{what} while {} requests run and {} wait; pause first",
                self.running.len(),
                self.waiting.len()
            );
            self.ledger.violate(ViolationKind::UpdateWhileRunning, None, detail.clone());
            return Err(Refusal::bad(detail));
        }
        if !self.residence.weights {
            let detail = format!("{what} while the weights sleep; wake them first");
            self.ledger.violate(ViolationKind::UpdateWhileAsleep, None, detail.clone());
            return Err(Refusal::bad(detail));
        }
        Ok(())
    }

    fn out_of_order(&mut self, detail: &str) -> Refusal {
        self.ledger.violate(ViolationKind::TransferOutOfOrder, None, detail.into());
        Refusal::bad(detail)
    }
}

async fn read_version(path: &Path) -> Result<Option<u64>, Refusal> {
    let metadata = tokio::fs::metadata(path)
        .await
        .map_err(|error| Refusal::bad(format!("weights at {}: {error}", path.display())))?;
    let file = if metadata.is_dir() { path.join("version.json") } else { path.to_owned() };
    if file.extension().is_none_or(|extension| extension != "json") {
        return Ok(None);
    }
    match tokio::fs::read(&file).await {
        Ok(bytes) => serde_json::from_slice::<VersionFile>(&bytes)
            .map(|file| Some(file.version))
            .map_err(|error| Refusal::bad(format!("{}: {error}", file.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Refusal::bad(format!("{}: {error}", file.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::version_of_label;

    #[test]
    fn a_label_ends_in_its_version() {
        assert_eq!(version_of_label("7"), Some(7));
        assert_eq!(version_of_label("step-12"), Some(12));
        assert_eq!(version_of_label("default"), None);
        assert_eq!(version_of_label("v2-rc"), None);
    }
}
