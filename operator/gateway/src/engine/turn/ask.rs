//! The request of a recorded turn. The client's own fields stay as they are; ours are added,
//! so that the engine says which tokens it read and made.

use bytes::Bytes;
use rollwright_core::fault::{Fault, FaultKind};
use serde::Deserialize;

use super::piece::Shown;
use crate::engine::dialect::{Api, priority};
use crate::engine::endpoint::Endpoint;
use crate::engine::fields::Fields;

/// Fields that a continuation by token ids does without: the prompt as it was before it was
/// tokens, and what only shapes a chat's reply.
const LEFT_OUT: [&str; 22] = [
    "messages",
    "prompt",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "include_reasoning",
    "separate_reasoning",
    "reasoning_effort",
    "mm_processor_kwargs",
    "response_format",
    "max_completion_tokens",
    "top_logprobs",
    "suffix",
    "echo",
    "store",
    "modalities",
    "request_id",
];

/// Fields with which a turn that broke off cannot be gone on with: the engine's state is
/// more than its tokens (a grammar, a parser of calls), or counts only tokens of one request.
const NOT_CONTINUED: [&str; 12] = [
    "tools",
    "functions",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "regex",
    "ebnf",
    "json_schema",
    "logits_processors",
];

/// What the request of a recorded turn says.
#[derive(Debug)]
pub struct TurnAsk {
    api: Api,
    body: Bytes,
    /// The reply is to be streamed.
    pub stream: bool,
    /// What of our additions the client asked for itself.
    pub shown: Shown,
    /// It may be gone on with from its tokens.
    pub continuable: bool,
    /// Strings at which it ends.
    pub stops: Vec<String>,
    /// The prompt, where it was given as token ids.
    pub prompt: Option<Vec<u32>>,
    most: Option<u64>,
    least: Option<u64>,
    seed: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

fn refused(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::User, reason, message)
}

/// Reads a field, or says which one is wrong.
fn read<T: for<'de> Deserialize<'de>>(fields: &Fields<'_>, name: &str) -> Result<Option<T>, Fault> {
    fields.get(name).map_err(|error| refused("InvalidField", format!("`{name}`: {error}")))
}

impl TurnAsk {
    /// Reads a body. A fault names what a recorded turn cannot have.
    pub fn read(api: Api, body: Bytes) -> Result<Self, Fault> {
        let fields = Fields::parse(&body).map_err(|error| {
            refused("InvalidJson", format!("the body is not one JSON object: {error}"))
        })?;
        let nested;
        let sampling = match fields.raw("sampling_params") {
            Some(params) if api == Api::Generate => {
                nested = Fields::parse(params.as_bytes()).map_err(|error| {
                    refused("InvalidField", format!("`sampling_params`: {error}"))
                })?;
                &nested
            }
            _ => &fields,
        };
        for name in ["stream", "n", "max_tokens", "logprobs", "prompt", "input_ids", "seed"] {
            if fields.repeats(name) {
                return Err(refused("RepeatedField", format!("`{name}` occurs twice")));
            }
        }
        for name in ["n", "best_of"] {
            if read::<u64>(sampling, name)?.is_some_and(|count| count > 1) {
                let message = format!(
                    "a recorded turn has one reply: leave `{name}` out, and open a group for more rollouts"
                );
                return Err(refused("OneReplyOnly", message));
            }
        }
        for name in ["use_beam_search", "echo"] {
            if read::<bool>(&fields, name)? == Some(true) {
                let message = format!("`{name}` cannot be recorded token by token: leave it out");
                return Err(refused("NotRecordable", message));
            }
        }
        let (most, least) = match api {
            Api::Chat => ("max_completion_tokens", "min_tokens"),
            Api::Completions => ("max_tokens", "min_tokens"),
            Api::Generate => ("max_new_tokens", "min_new_tokens"),
        };
        let most = match read(sampling, most)? {
            None if api == Api::Chat => read(sampling, "max_tokens")?,
            // OpenAI's own default.
            None if api == Api::Completions && sampling.raw("max_tokens").is_none() => Some(16),
            most => most,
        };
        let penalised = |name| -> Result<bool, Fault> {
            Ok(read::<f64>(sampling, name)?.is_some_and(|by| by != 0.0))
        };
        let continuable = !NOT_CONTINUED.iter().any(|name| fields.has(name) || sampling.has(name))
            && !penalised("presence_penalty")?
            && !penalised("frequency_penalty")?;
        let stops = read::<OneOrMany<String>>(sampling, "stop")?.map(OneOrMany::into_vec);
        let ask = Self {
            api,
            stream: read(&fields, "stream")?.unwrap_or(false),
            shown: shown(api, &fields)?,
            continuable,
            stops: stops.unwrap_or_default(),
            prompt: prompt(api, &fields)?,
            most,
            least: read(sampling, least)?,
            seed: read(&fields, "seed")?,
            body: Bytes::new(),
        };
        drop(fields);
        Ok(Self { body, ..ask })
    }

    /// By which interface it came.
    pub fn api(&self) -> Api {
        self.api
    }

    /// How many tokens may still be generated; `None`: as many as fit.
    pub fn left(&self, made: usize) -> Option<u64> {
        self.most.map(|most| most.saturating_sub(made as u64))
    }

    /// The body for the beginning of the turn.
    pub fn beginning(
        &self,
        endpoint: &Endpoint,
        higher_first: i64,
        rid: &str,
    ) -> Result<String, Fault> {
        let mut fields = self.fields()?;
        self.add(&mut fields, endpoint, higher_first, rid);
        Ok(fields.to_json())
    }

    /// The body with which [`Api::continued_by`] goes on after `made` tokens.
    pub fn continuation(
        &self,
        endpoint: &Endpoint,
        higher_first: i64,
        rid: &str,
        prompt: &[u32],
        made: &[u32],
    ) -> Result<String, Fault> {
        let mut fields = self.fields()?;
        fields.remove(&LEFT_OUT);
        let ids: Vec<u32> = prompt.iter().chain(made).copied().collect();
        // Numbers always serialise.
        let ids = serde_json::to_string(&ids).unwrap_or_default();
        // Explicitly null: as many as fit. Left out, it would be 16.
        let most = self.left(made.len()).map_or("null".to_owned(), |left| left.to_string());
        let least = self.least.map(|least| least.saturating_sub(made.len() as u64));
        // The same seed would draw the same random numbers once more (vLLM); `SGLang` draws
        // by position.
        let seed = self.seed.map(|seed| seed.wrapping_add_unsigned(made.len() as u64));
        if self.api == Api::Generate {
            let params = fields.raw("sampling_params").unwrap_or("{}").to_owned();
            let mut sampling = Fields::parse(params.as_bytes())
                .map_err(|error| refused("InvalidField", format!("`sampling_params`: {error}")))?;
            if self.most.is_some() {
                sampling.set("max_new_tokens", most);
            }
            if let Some(least) = least {
                sampling.set("min_new_tokens", least.to_string());
            }
            let sampling = sampling.to_json();
            fields.remove(&["text"]);
            fields.set("input_ids", ids);
            fields.set("sampling_params", sampling);
        } else {
            fields.set("prompt", ids);
            fields.set("max_tokens", most);
            if let Some(least) = least {
                fields.set("min_tokens", least.to_string());
            }
            if let Some(seed) = seed {
                fields.set("seed", seed.to_string());
            }
            if self.api == Api::Chat {
                fields.remove(&["logprobs"]);
            }
        }
        let text = fields.to_json();
        let mut fields = Fields::parse(text.as_bytes())
            .map_err(|error| refused("InvalidJson", error.to_string()))?;
        Self::add_for(self.api.continued_by(), &mut fields, endpoint, higher_first, rid);
        Ok(fields.to_json())
    }

    fn fields(&self) -> Result<Fields<'_>, Fault> {
        Fields::parse(&self.body).map_err(|error| refused("InvalidJson", error.to_string()))
    }

    fn add(&self, fields: &mut Fields<'_>, endpoint: &Endpoint, higher_first: i64, rid: &str) {
        Self::add_for(self.api, fields, endpoint, higher_first, rid);
    }

    /// Asks for token ids and log-probabilities.
    fn add_for(
        api: Api,
        fields: &mut Fields<'_>,
        endpoint: &Endpoint,
        higher_first: i64,
        rid: &str,
    ) {
        match api {
            Api::Chat => fields.set("logprobs", "true"),
            Api::Completions if !fields.has("logprobs") => fields.set("logprobs", "1"),
            Api::Completions => {}
            Api::Generate => {
                fields.set("return_logprob", "true");
                fields.set("rid", format!("\"{rid}\""));
            }
        }
        if api != Api::Generate {
            fields.set("return_token_ids", "true");
        }
        if let Some(priority) = priority(endpoint, higher_first) {
            fields.set("priority", priority.to_string());
        }
    }
}

fn shown(api: Api, fields: &Fields<'_>) -> Result<Shown, Fault> {
    Ok(match api {
        Api::Chat => Shown {
            ids: read(fields, "return_token_ids")?.unwrap_or(false),
            logprobs: read(fields, "logprobs")?.unwrap_or(false),
        },
        Api::Completions => Shown {
            ids: read(fields, "return_token_ids")?.unwrap_or(false),
            logprobs: fields.has("logprobs"),
        },
        Api::Generate => {
            let asked = read::<OneOrMany<bool>>(fields, "return_logprob")?;
            let asked = asked.is_some_and(|asked| asked.into_vec().contains(&true));
            Shown { ids: true, logprobs: asked }
        }
    })
}

fn prompt(api: Api, fields: &Fields<'_>) -> Result<Option<Vec<u32>>, Fault> {
    match api {
        Api::Chat => Ok(None),
        Api::Completions => match fields.raw("prompt") {
            Some(ids) if ids.starts_with('[') => {
                serde_json::from_str(ids).map(Some).map_err(|_| {
                    refused(
                        "OneReplyOnly",
                        "`prompt` of a recorded turn is one string or one array of token ids",
                    )
                })
            }
            _ => Ok(None),
        },
        Api::Generate => match read::<Vec<u32>>(fields, "input_ids")? {
            Some(ids) => Ok(Some(ids)),
            None => Err(refused(
                "TokensRequired",
                "a recorded turn by /generate needs its prompt as `input_ids`: this interface does not say how it reads `text`",
            )),
        },
    }
}
