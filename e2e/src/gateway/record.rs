//! What a batch holds of a trajectory, against what engine-sims made.

use anyhow::{Context as _, ensure};
use rollwright_engine_sim::{Tokenizer, version_of_logprob};
use serde_json::{Value, json};

/// A trajectory of a batch, its lists read.
#[derive(Debug)]
pub struct Record {
    /// Prompts, generated tokens and observations.
    pub ids: Vec<u32>,
    /// For each token, the version that its engine-sim's log-prob tells; `None` where it
    /// was not generated.
    pub made_by: Vec<Option<u64>>,
    /// For each token, the version that the batch says.
    pub said: Vec<Option<u64>>,
}

impl Record {
    /// Reads a record, and checks that each generated token, and no other, has a log-prob
    /// and a version, and that this is the version that made it.
    pub fn check(record: &Value) -> anyhow::Result<Self> {
        let list = |name: &str| record[name].as_array().with_context(|| format!("no {name}"));
        let ids: Vec<u32> =
            list("token_ids")?.iter().filter_map(Value::as_u64).map(|id| id as u32).collect();
        let made_by: Vec<Option<u64>> =
            list("logprobs")?.iter().map(|p| p.as_f64().map(version_of_logprob)).collect();
        let mask: Vec<bool> = list("loss_mask")?.iter().map(|bit| *bit == json!(1)).collect();
        let mut said = vec![None; ids.len()];
        for range in list("versions")? {
            let bound = |name: &str| range[name].as_u64().context("no bound");
            let (start, end) = (bound("start")? as usize, bound("end")? as usize);
            ensure!(start < end && end <= ids.len(), "{range}");
            for token in &mut said[start..end] {
                ensure!(token.is_none(), "ranges overlap: {}", record["versions"]);
                *token = Some(bound("version")?);
            }
        }
        ensure!(made_by.len() == ids.len() && mask.len() == ids.len(), "lists of unlike length");
        for (at, generated) in mask.iter().enumerate() {
            ensure!(said[at].is_some() == *generated, "token {at}: {:?}", said[at]);
            ensure!(
                said[at] == made_by[at],
                "token {at} was made by version {:?}, and the batch says {:?}",
                made_by[at],
                said[at]
            );
        }
        Ok(Self { ids, made_by, said })
    }

    /// The text of the generated tokens.
    pub fn text(&self) -> String {
        let generated = self.ids.iter().zip(&self.said).filter(|(_, said)| said.is_some());
        let generated: Vec<u32> = generated.map(|(id, _)| *id).collect();
        Tokenizer.decode_generated(&generated)
    }

    /// The versions of the generated tokens in their order, each once.
    pub fn versions(&self) -> Vec<u64> {
        let mut versions: Vec<u64> = self.said.iter().copied().flatten().collect();
        versions.dedup();
        versions
    }
}
