//! What is asked of a model on GPUs for a trajectory, in the words of its engine, and what
//! its answer says.

use rollwright_core::fault::{Fault, FaultKind};
use rollwright_crds::engine::EngineType;
use rollwright_crds::reward::Ask;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Said;
use super::judge;
use super::subject::{Subject, Tokens};

/// Characters of an answer shown in a fault.
const SHOWN: usize = 200;

/// How one service is asked.
#[derive(Debug, Clone)]
pub(super) struct Dialect {
    /// What it is asked for.
    pub(super) ask: Ask,
    /// What serves it.
    pub(super) engine: EngineType,
    /// Its model, as requests name it.
    pub(super) model: String,
    /// The service, for messages.
    pub(super) service: String,
}

/// A request of an engine: `POST path` with a JSON body.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) path: &'static str,
    pub(super) body: Vec<u8>,
}

impl Dialect {
    /// The request that asks about a trajectory.
    pub(super) fn request(&self, subject: &Subject) -> Result<Request, Fault> {
        let (path, body) = match (self.ask, self.engine) {
            // As it is: the caller's own JSON goes on letter by letter.
            (Ask::Reward, _) => ("/reward", serde_json::to_vec(subject)),
            (Ask::Pooling, EngineType::SGLang) => {
                let body = json!({"model": self.model, "input_ids": self.tokens(subject)?});
                ("/classify", serde_json::to_vec(&body))
            }
            (Ask::Pooling, _) => {
                // Of a classifier its raw number, not what a sigmoid makes of it.
                let body = json!({
                    "model": self.model, "input": self.tokens(subject)?, "use_activation": false,
                });
                ("/pooling", serde_json::to_vec(&body))
            }
            (Ask::LogProbs, EngineType::SGLang) => {
                let body = json!({
                    "input_ids": self.tokens(subject)?,
                    "sampling_params": {"max_new_tokens": 1, "temperature": 0},
                    "return_logprob": true, "logprob_start_len": 0,
                });
                ("/generate", serde_json::to_vec(&body))
            }
            (Ask::LogProbs, _) => {
                let body = json!({
                    "model": self.model, "prompt": self.tokens(subject)?,
                    "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0,
                });
                ("/v1/completions", serde_json::to_vec(&body))
            }
        };
        let body = body.map_err(|error| {
            let message = format!("cannot write the request of `{}`: {error}", self.service);
            Fault::new(FaultKind::Infrastructure, "RewardRequest", message)
        })?;
        Ok(Request { path, body })
    }

    /// What a successful answer says.
    pub(super) fn read(&self, body: &[u8], subject: &Subject) -> Result<Said, Fault> {
        let said = match (self.ask, self.engine) {
            (Ask::Reward, _) => judge::reward(body).map(Said::Reward),
            (Ask::Pooling, _) => pooled(body).map(Said::Reward),
            (Ask::LogProbs, engine) => {
                let tokens = self.recorded(subject)?;
                let logprobs = match engine {
                    EngineType::SGLang => sglang_logprobs(body, tokens),
                    EngineType::Vllm | EngineType::OpenAI => vllm_logprobs(body, tokens),
                };
                logprobs.map(Said::LogProbs)
            }
        };
        said.ok_or_else(|| self.unread(body))
    }

    fn tokens<'a>(&self, subject: &'a Subject) -> Result<&'a [u32], Fault> {
        Ok(&self.recorded(subject)?.token_ids)
    }

    fn recorded<'a>(&self, subject: &'a Subject) -> Result<&'a Tokens, Fault> {
        subject.tokens.as_ref().ok_or_else(|| {
            let message = format!(
                "reward service `{}` reads the tokens of a trajectory, and those of `{}` are not recorded: open its group with token logs",
                self.service, subject.trajectory
            );
            Fault::new(FaultKind::User, "TokensNeeded", message)
        })
    }

    fn unread(&self, body: &[u8]) -> Fault {
        let text = String::from_utf8_lossy(body);
        let shown: String = text.chars().take(SHOWN).collect();
        let (reason, wanted) = match self.ask {
            Ask::Reward => ("RewardNotANumber", "`{\"reward\": NUMBER}`"),
            Ask::Pooling => ("RewardNotANumber", "the numbers of a reward model"),
            Ask::LogProbs => ("LogProbsIncomplete", "a log-probability for each generated token"),
        };
        let message =
            format!("reward service `{}` must answer {wanted}, and it said: {shown}", self.service);
        Fault::new(FaultKind::Infrastructure, reason, message)
    }
}

/// The last number of a pooled answer: vLLM's `data[0].data`, SGLang's `[0].embedding`, each
/// a number for the whole or rows for the tokens.
fn pooled(body: &[u8]) -> Option<f64> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let first = answer.pointer("/data/0/data").or_else(|| answer.pointer("/0/embedding"));
    let mut last = first.or_else(|| answer.get("embedding"))?;
    while let Some(rows) = last.as_array() {
        last = rows.last()?;
    }
    last.as_f64().filter(|reward| reward.is_finite())
}

/// Keeps what was generated: `None` where a token is the prompt's or an observation.
fn generated(said: Vec<Option<f64>>, tokens: &Tokens) -> Option<Vec<Option<f32>>> {
    if said.len() != tokens.token_ids.len() {
        return None;
    }
    let each =
        said.into_iter().zip(&tokens.loss_mask).map(|(logprob, mask)| match (mask, logprob) {
            (0, _) => Some(None),
            (_, Some(logprob)) if logprob.is_finite() && logprob <= 0.0 => {
                Some(Some(logprob as f32))
            }
            // A generated token without one, which only the first of all may lack.
            _ => None,
        });
    each.collect()
}

/// `prompt_logprobs` of the one choice: for each token a map from ids to what is known.
fn vllm_logprobs(body: &[u8], tokens: &Tokens) -> Option<Vec<Option<f32>>> {
    #[derive(Deserialize)]
    struct Known {
        logprob: f64,
    }
    type Row = Option<std::collections::HashMap<String, Known>>;
    #[derive(Deserialize)]
    struct Choice {
        prompt_logprobs: Vec<Row>,
    }
    #[derive(Deserialize)]
    struct Answer {
        choices: [Choice; 1],
    }
    let Answer { choices: [choice] } = serde_json::from_slice(body).ok()?;
    let of = |(row, id): (Row, &u32)| row.and_then(|row| Some(row.get(&id.to_string())?.logprob));
    generated(choice.prompt_logprobs.into_iter().zip(&tokens.token_ids).map(of).collect(), tokens)
}

/// `input_token_logprobs`: for each token its log-probability, id and text.
fn sglang_logprobs(body: &[u8], tokens: &Tokens) -> Option<Vec<Option<f32>>> {
    #[derive(Deserialize)]
    struct Meta {
        input_token_logprobs: Vec<(Option<f64>, u32, Value)>,
    }
    #[derive(Deserialize)]
    struct Answer {
        meta_info: Meta,
    }
    let answer: Answer = serde_json::from_slice(body).ok()?;
    let said = answer.meta_info.input_token_logprobs;
    let same = said.iter().zip(&tokens.token_ids).all(|((_, id, _), token)| id == token);
    same.then(|| generated(said.into_iter().map(|(logprob, ..)| logprob).collect(), tokens))?
}

#[cfg(test)]
mod tests {
    use rollwright_core::ids::{GroupId, Task, TrajectoryId};
    use rollwright_core::version::Version;

    use super::*;

    fn subject(tokens: Option<Tokens>) -> Subject {
        Subject {
            trajectory: TrajectoryId::new("g/0").unwrap(),
            group: GroupId::new("g").unwrap(),
            task: Task::new("math").unwrap(),
            payload: None,
            metadata: None,
            messages: None,
            tokens,
            turns: 1,
            prompt_tokens: 2,
            generated_tokens: 2,
            start_version: Version(1),
            oldest_version: Version(1),
        }
    }

    fn recorded() -> Subject {
        let tokens = Tokens { token_ids: vec![1, 5, 7, 2], loss_mask: vec![0, 0, 1, 1] };
        subject(Some(tokens))
    }

    fn dialect(ask: Ask, engine: EngineType) -> Dialect {
        Dialect { ask, engine, model: "m".to_owned(), service: "judge".to_owned() }
    }

    #[test]
    fn each_engine_is_asked_in_its_own_words() {
        for (ask, engine, path, part) in [
            (Ask::Reward, EngineType::Vllm, "/reward", json!({"trajectory": "g/0"})),
            (Ask::Pooling, EngineType::Vllm, "/pooling", json!({"input": [1, 5, 7, 2]})),
            (Ask::Pooling, EngineType::SGLang, "/classify", json!({"input_ids": [1, 5, 7, 2]})),
            (
                Ask::LogProbs,
                EngineType::OpenAI,
                "/v1/completions",
                json!({"model": "m", "prompt": [1, 5, 7, 2], "prompt_logprobs": 0}),
            ),
            (
                Ask::LogProbs,
                EngineType::SGLang,
                "/generate",
                json!({"input_ids": [1, 5, 7, 2], "return_logprob": true, "logprob_start_len": 0}),
            ),
        ] {
            let request = dialect(ask, engine).request(&recorded()).unwrap();
            assert_eq!(request.path, path);
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            for (name, value) in part.as_object().unwrap() {
                assert_eq!(&body[name], value, "{path}");
            }
        }
    }

    #[test]
    fn tokens_that_were_not_recorded_are_the_callers_fault() {
        for ask in [Ask::Pooling, Ask::LogProbs] {
            let fault = dialect(ask, EngineType::Vllm).request(&subject(None)).unwrap_err();
            assert_eq!((fault.kind, &*fault.reason), (FaultKind::User, "TokensNeeded"));
        }
    }

    #[test]
    fn a_reward_model_scores_by_its_last_number() {
        for (engine, body, reward) in [
            (EngineType::Vllm, r#"{"data": [{"index": 0, "data": [[0.1], [0.2], [-1.5]]}]}"#, -1.5),
            (EngineType::Vllm, r#"{"data": [{"index": 0, "data": [0.75]}]}"#, 0.75),
            (EngineType::SGLang, r#"[{"embedding": [2.5], "meta_info": {}}]"#, 2.5),
            (EngineType::SGLang, r#"{"embedding": [2.5]}"#, 2.5),
        ] {
            let said = dialect(Ask::Pooling, engine).read(body.as_bytes(), &recorded()).unwrap();
            assert_eq!(said, Said::Reward(reward));
        }
    }

    #[test]
    fn log_probabilities_are_kept_where_generated() {
        let vllm = r#"{"choices": [{"text": "", "prompt_logprobs": [null,
            {"5": {"logprob": -3.0, "rank": 9}}, {"7": {"logprob": -0.5}, "9": {"logprob": -0.1}},
            {"2": {"logprob": -1.25}}]}]}"#;
        let sglang = r#"{"meta_info": {"input_token_logprobs":
            [[null, 1, null], [-3.0, 5, null], [-0.5, 7, "a"], [-1.25, 2, null]]}}"#;
        for (engine, body) in [(EngineType::Vllm, vllm), (EngineType::SGLang, sglang)] {
            let said = dialect(Ask::LogProbs, engine).read(body.as_bytes(), &recorded()).unwrap();
            assert_eq!(said, Said::LogProbs(vec![None, None, Some(-0.5), Some(-1.25)]));
        }
    }

    #[test]
    fn what_is_no_answer_is_a_fault() {
        let short = r#"{"choices": [{"prompt_logprobs": [null]}]}"#;
        let other = r#"{"choices": [{"prompt_logprobs": [null, null, {"8": {"logprob": -1}}, {"2": {"logprob": -1}}]}]}"#;
        let positive = r#"{"meta_info": {"input_token_logprobs":
            [[null, 1, ""], [-3.0, 5, ""], [0.5, 7, ""], [-1.25, 2, ""]]}}"#;
        let foreign = r#"{"meta_info": {"input_token_logprobs":
            [[null, 1, ""], [-3.0, 5, ""], [-0.5, 8, ""], [-1.25, 2, ""]]}}"#;
        for (ask, engine, body, reason) in [
            (Ask::LogProbs, EngineType::Vllm, short, "LogProbsIncomplete"),
            (Ask::LogProbs, EngineType::Vllm, other, "LogProbsIncomplete"),
            (Ask::LogProbs, EngineType::SGLang, positive, "LogProbsIncomplete"),
            (Ask::LogProbs, EngineType::SGLang, foreign, "LogProbsIncomplete"),
            (Ask::Pooling, EngineType::Vllm, r#"{"data": [{"data": []}]}"#, "RewardNotANumber"),
            (Ask::Pooling, EngineType::Vllm, r#"{"data": [{"data": "x"}]}"#, "RewardNotANumber"),
            (Ask::Reward, EngineType::Vllm, r#"{"reward": "good"}"#, "RewardNotANumber"),
            (Ask::Reward, EngineType::Vllm, r#"{"reward": 1, "error": "oom"}"#, "RewardNotANumber"),
        ] {
            let fault = dialect(ask, engine).read(body.as_bytes(), &recorded()).unwrap_err();
            let kind = FaultKind::Infrastructure;
            assert_eq!((fault.kind, &*fault.reason), (kind, reason), "{body}");
        }
    }
}
