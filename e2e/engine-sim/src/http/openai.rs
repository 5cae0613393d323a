//! `/v1/chat/completions` and `/v1/completions`: requests.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use super::handover::{self, Bootstrap, KvTransfer};
use super::refusal::refuse;
use super::{App, Shared, TRAJECTORY_HEADERS, answer, header, stream};
use crate::config::{Config, Dialect};
use crate::engine::{Generation, Handover, Refusal, Request};
use crate::policy::logprobs_of;
use crate::template;
use crate::text::TextStream;
use crate::tokenizer::{MESSAGE_END, Token, Tokenizer, VOCABULARY};

/// Choices of one request.
const MAX_CHOICES: usize = 64;

/// The fields that are simulated; others are ignored, as temperature is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Body {
    model: Option<String>,
    messages: Option<Vec<Value>>,
    prompt: Option<Prompt>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    min_tokens: Option<usize>,
    n: Option<usize>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    seed: Option<i64>,
    stop: Option<OneOrMany>,
    stop_token_ids: Option<Vec<Token>>,
    ignore_eos: Option<bool>,
    include_stop_str_in_output: Option<bool>,
    logprobs: Option<Value>,
    top_logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    priority: Option<i64>,
    return_token_ids: Option<bool>,
    return_tokens_as_token_ids: Option<bool>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    request_id: Option<String>,
    rid: Option<String>,
    echo: Option<bool>,
    kv_transfer_params: Option<KvTransfer>,
    #[serde(flatten)]
    bootstrap: Bootstrap,
}

/// One text or several, as text or token ids.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<Token>),
    Texts(Vec<String>),
    Batch(Vec<Vec<Token>>),
}

impl Prompt {
    /// Whether it is one text, and no list.
    pub(super) fn is_single(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Ids(_))
    }

    /// The token ids of each text. Ids beyond the vocabulary are refused.
    pub(super) fn lists(self) -> Result<Vec<Vec<Token>>, Refusal> {
        let lists = match self {
            Self::Text(text) => vec![Tokenizer.encode(&text)],
            Self::Ids(ids) => vec![ids],
            Self::Texts(texts) => texts.iter().map(|text| Tokenizer.encode(text)).collect(),
            Self::Batch(batch) => batch,
        };
        lists.iter().try_for_each(|ids| check_ids(ids))?;
        Ok(lists)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(super) fn all(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }

    /// The stop strings; empty ones stop nothing.
    pub(super) fn list(self) -> Vec<String> {
        let mut list = self.all();
        list.retain(|stop| !stop.is_empty());
        list
    }
}

/// How the answer is to look.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) api: Api,
    pub(super) dialect: Dialect,
    pub(super) id: String,
    pub(super) model: String,
    pub(super) prompt: Vec<Token>,
    /// With log-probs, and of how many alternatives (chat).
    pub(super) logprobs: Option<usize>,
    /// The log-probs of the prompt's tokens, where they are asked for (vLLM).
    pub(super) prompt_logprobs: Option<Vec<Option<f64>>>,
    pub(super) token_ids: bool,
    pub(super) names_as_ids: bool,
    pub(super) usage_at_end: bool,
    /// The text of a choice before its first token.
    pub(super) text: TextStream,
}

/// Which of the two routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
}

type Parsed = Result<Json<Body>, JsonRejection>;

pub(super) async fn chat(State(app): Shared, headers: HeaderMap, body: Parsed) -> Response {
    respond(&app, &headers, body, Api::Chat).await
}

pub(super) async fn completions(State(app): Shared, headers: HeaderMap, body: Parsed) -> Response {
    respond(&app, &headers, body, Api::Completions).await
}

async fn respond(app: &App, headers: &HeaderMap, body: Parsed, api: Api) -> Response {
    let dialect = app.engine.config.dialect;
    let begun = body
        .map_err(|error| Refusal::bad(error.body_text()))
        .and_then(|Json(body)| begin(app, headers, body, api));
    match begun {
        Err(refusal) => refuse(dialect, &refusal),
        Ok((shape, generations, true)) => stream::respond(shape, generations),
        Ok((shape, generations, false)) => answer::respond(app, &shape, generations).await,
    }
}

/// Reads the request and gives it to the engine. Tells whether the answer is streamed.
fn begin(
    app: &App,
    headers: &HeaderMap,
    mut body: Body,
    api: Api,
) -> Result<(Shape, Vec<Generation>, bool), Refusal> {
    let config = &app.engine.config;
    check_model(config, body.model.as_deref())?;
    if body.echo == Some(true) {
        return Err(Refusal::bad("engine-sim does not simulate `echo`"));
    }
    let prompt = match api {
        Api::Chat => chat_prompt(&body)?,
        Api::Completions => completion_prompt(body.prompt.take())?,
    };
    let mut max_tokens = max_tokens(app, &body, api, prompt.len())?;
    let handover = match config.dialect {
        Dialect::Vllm => handover::of_vllm(app, body.kv_transfer_params.take()),
        Dialect::Sglang => handover::of_sglang(app, std::mem::take(&mut body.bootstrap))?,
        Dialect::OpenAi => Handover::None,
    };
    if matches!(handover, Handover::Give { .. }) {
        max_tokens = 1;
    }
    let priority = body.priority.unwrap_or(0);
    if priority != 0 && config.dialect == Dialect::Vllm && !config.priority_scheduling {
        return Err(Refusal::bad(format!(
            "Got priority {priority} but Priority scheduling is not enabled."
        )));
    }
    let rid = body
        .request_id
        .take()
        .or(body.rid.take())
        .or_else(|| header(headers, &["x-request-id"]).map(Into::into));
    let prefix = match (config.dialect, api) {
        (Dialect::Sglang, _) => "",
        (_, Api::Chat) => "chatcmpl-",
        (_, Api::Completions) => "cmpl-",
    };
    let stops = body.stop.take().map(OneOrMany::list).unwrap_or_default();
    let tool_choice = body.tool_choice.as_ref().and_then(Value::as_str);
    let tools = api == Api::Chat
        && body.tools.as_ref().is_some_and(|tools| !tools.is_empty())
        && tool_choice != Some("none");
    let include_stop = body.include_stop_str_in_output == Some(true);
    let shape = Shape {
        api,
        dialect: config.dialect,
        id: app.id(prefix, rid.as_deref()),
        model: config.model.clone(),
        prompt_logprobs: (body.prompt_logprobs.is_some() && config.dialect == Dialect::Vllm)
            .then(|| logprobs_of(&prompt, app.engine.version())),
        prompt,
        logprobs: match &body.logprobs {
            Some(Value::Bool(true) | Value::Number(_)) => Some(body.top_logprobs.unwrap_or(0)),
            _ => None,
        },
        token_ids: body.return_token_ids == Some(true) && config.dialect == Dialect::Vllm,
        names_as_ids: body.return_tokens_as_token_ids == Some(true),
        usage_at_end: body.stream_options.take().unwrap_or_default().include_usage == Some(true),
        text: TextStream::new(stops.clone(), include_stop, tools),
    };
    let choices = body.n.unwrap_or(1);
    if !(1..=MAX_CHOICES).contains(&choices) {
        return Err(Refusal::bad(format!("n must be in 1..={MAX_CHOICES}, not {choices}")));
    }
    let request = Request {
        id: shape.id.clone(),
        rid,
        path: match api {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
        },
        trajectory: header(headers, &TRAJECTORY_HEADERS).map(Into::into),
        task: header(headers, &["x-rollwright-task"]).map(Into::into),
        prompt: shape.prompt.clone(),
        max_tokens,
        min_tokens: body.min_tokens.unwrap_or(0),
        ignore_end: body.ignore_eos == Some(true),
        stop: stops,
        stop_tokens: body.stop_token_ids.take().unwrap_or_default(),
        seed: body.seed.unwrap_or(0).cast_unsigned(),
        priority,
        rank: if config.dialect == Dialect::Vllm { priority } else { -priority },
        handover,
    };
    let generations = (0..choices as u64)
        .map(|choice| {
            let seed = request.seed.wrapping_add(choice);
            let handover = handover::of_choice(&request.handover, choice);
            app.engine.submit(Request { seed, handover, ..request.clone() })
        })
        .collect::<Result<_, _>>()?;
    Ok((shape, generations, body.stream == Some(true)))
}

fn chat_prompt(body: &Body) -> Result<Vec<Token>, Refusal> {
    let messages = body.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return Err(Refusal::bad("messages: at least one is needed"));
    }
    let messages = messages
        .iter()
        .map(template::message)
        .collect::<Result<Vec<_>, _>>()
        .map_err(Refusal::bad)?;
    let goes_on = body.continue_final_message == Some(true);
    let reply = body.add_generation_prompt.unwrap_or(!goes_on);
    if goes_on && reply {
        return Err(Refusal::bad(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        ));
    }
    let mut prompt = template::render(&messages, reply);
    if goes_on && let Some(end) = prompt.iter().rposition(|&token| token == MESSAGE_END) {
        prompt.truncate(end);
    }
    Ok(prompt)
}

fn completion_prompt(prompt: Option<Prompt>) -> Result<Vec<Token>, Refusal> {
    let Some(prompt) = prompt else {
        return Err(Refusal::bad("prompt: a string or a list of token ids is needed"));
    };
    let [ids] = <[_; 1]>::try_from(prompt.lists()?)
        .map_err(|_| Refusal::bad("engine-sim takes one prompt a request"))?;
    Ok(ids)
}

/// Another model than the one that is served is refused.
pub(super) fn check_model(config: &Config, model: Option<&str>) -> Result<(), Refusal> {
    match model {
        Some(model) if model != config.model => {
            let message = format!("The model `{model}` does not exist.");
            Err(Refusal { status: 404, message })
        }
        _ => Ok(()),
    }
}

/// Ids beyond the vocabulary are refused, as vLLM does.
pub(super) fn check_ids(ids: &[Token]) -> Result<(), Refusal> {
    match ids.iter().find(|&&id| id >= VOCABULARY) {
        Some(id) => Err(Refusal::bad(format!("Token id {id} is out of vocabulary"))),
        None => Ok(()),
    }
}

fn max_tokens(app: &App, body: &Body, api: Api, prompt: usize) -> Result<usize, Refusal> {
    let longest = app.engine.config.capacity.longest();
    let room = longest.saturating_sub(prompt);
    let asked = body.max_completion_tokens.or(body.max_tokens);
    let Some(asked) = asked else { return Ok(if api == Api::Chat { room } else { 16.min(room) }) };
    if asked == 0 {
        return Err(Refusal::bad("max_tokens must be at least 1, got 0."));
    }
    if asked > room && app.engine.config.dialect == Dialect::Vllm {
        return Err(Refusal::bad(format!(
            "'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum \
             context length is {longest} tokens and your request has {prompt} input tokens."
        )));
    }
    Ok(asked.min(room))
}
