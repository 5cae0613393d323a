//! Reward models: vLLM's `/pooling`, `/score` and `/rerank`, and SGLang's `/classify`. The
//! number of a text is the last of [`rewards_of`] its tokens.

use std::sync::Arc;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::unix_seconds;
use super::openai::{OneOrMany, Prompt, check_model};
use super::refusal::{refuse, refuse_plain};
use super::{App, Shared};
use crate::engine::{Finish, Generation, Refusal, Request};
use crate::policy::rewards_of;
use crate::tokenizer::{Token, Tokenizer};

/// vLLM's, of which its key guards none.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/pooling", post(pooling))
        .route("/score", post(score))
        .route("/rerank", post(rerank))
}

/// vLLM's, which its key guards.
pub(super) fn guarded_routes() -> Router<Arc<App>> {
    Router::new().route("/v1/score", post(score)).route("/v1/rerank", post(rerank))
}

/// Whether the request of a path is one for the model.
pub(super) fn is_asked(path: &str) -> bool {
    let name = path.strip_prefix("/v1").unwrap_or(path);
    matches!(name, "/pooling" | "/score" | "/rerank" | "/classify")
}

type Parsed<T> = Result<Json<T>, JsonRejection>;

/// What the model makes of each text, in their order.
struct Pooled {
    /// After each token.
    rows: Vec<Vec<f64>>,
    tokens: usize,
}

impl Pooled {
    /// Of the whole texts.
    fn rewards(&self) -> impl Iterator<Item = f64> {
        self.rows.iter().filter_map(|row| row.last().copied())
    }
}

/// Has the engine read each of `prompts`, as a request of its own.
async fn pool(app: &App, path: &'static str, prompts: &[Vec<Token>]) -> Result<Pooled, Refusal> {
    let engine = &app.engine;
    let (version, id) = (engine.version(), app.id("pool-", None));
    let begun = prompts.iter().enumerate().map(|(at, prompt)| {
        let (id, prompt) = (format!("{id}-{at}"), prompt.clone());
        engine.submit(Request { id, path, prompt, max_tokens: 0, ..Request::default() })
    });
    let begun = begun.collect::<Result<Vec<_>, _>>()?;
    let ended = join_all(begun.into_iter().map(Generation::all)).await;
    if ended.iter().any(|(_, finish, _)| *finish == Finish::Abort) {
        return Err(Refusal { status: 500, message: "The request was aborted.".to_owned() });
    }
    let rows = prompts.iter().map(|prompt| rewards_of(prompt, version)).collect();
    Ok(Pooled { rows, tokens: prompts.iter().map(Vec::len).sum() })
}

fn usage(tokens: usize) -> Value {
    json!({
        "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0,
        "prompt_tokens_details": null,
    })
}

/// The answer, or the refusal, of a route of vLLM's.
async fn answer(app: &App, said: impl Future<Output = Result<Value, Refusal>>) -> Response {
    match said.await {
        Ok(body) => Json(body).into_response(),
        Err(refusal) => refuse(app.engine.config.dialect, &refusal),
    }
}

fn read<T>(body: Parsed<T>) -> Result<T, Refusal> {
    body.map(|Json(body)| body).map_err(|error| Refusal::bad(error.body_text()))
}

fn list(app: &App, prefix: &str, tokens: usize, data: &[Value]) -> Value {
    json!({
        "id": app.id(prefix, None), "object": "list", "created": unix_seconds(),
        "model": app.engine.config.model, "data": data, "usage": usage(tokens),
    })
}

/// vLLM puts what a classifier says through a sigmoid, unless that is not wanted.
fn activated(reward: f64, wanted: Option<bool>) -> f64 {
    if wanted == Some(false) { reward } else { 1.0 / (1.0 + (-reward).exp()) }
}

#[derive(Debug, Deserialize)]
struct PoolingBody {
    model: Option<String>,
    input: Prompt,
    task: Option<String>,
    use_activation: Option<bool>,
}

async fn pooling(State(app): Shared, body: Parsed<PoolingBody>) -> Response {
    let said = async {
        let body = read(body)?;
        check_model(&app.engine.config, body.model.as_deref())?;
        let whole = match body.task.as_deref() {
            None | Some("token_classify") => false,
            Some("classify") => true,
            Some(other) => {
                return Err(Refusal::bad(format!(
                    "task must be classify or token_classify, not {other:?}"
                )));
            }
        };
        let pooled = pool(&app, "/pooling", &body.input.lists()?).await?;
        let number = |reward: &f64| json!([activated(*reward, body.use_activation)]);
        let each = pooled.rows.iter().enumerate().map(|(index, row)| {
            let data =
                if whole { row.last().map(number) } else { Some(row.iter().map(number).collect()) };
            json!({"index": index, "object": "pooling", "data": data})
        });
        Ok(list(&app, "pool-", pooled.tokens, &each.collect::<Vec<_>>()))
    };
    answer(&app, said).await
}

#[derive(Debug, Deserialize)]
struct ScoreBody {
    model: Option<String>,
    text_1: OneOrMany,
    text_2: OneOrMany,
    use_activation: Option<bool>,
}

async fn score(State(app): Shared, body: Parsed<ScoreBody>) -> Response {
    let said = async {
        let body = read(body)?;
        check_model(&app.engine.config, body.model.as_deref())?;
        let pairs = pairs(&body.text_1.all(), &body.text_2.all())?;
        let pooled = pool(&app, "/score", &pairs).await?;
        let each = pooled.rewards().enumerate().map(|(index, reward)| {
            let score = activated(reward, body.use_activation);
            json!({"index": index, "object": "score", "score": score})
        });
        Ok(list(&app, "score-", pooled.tokens, &each.collect::<Vec<_>>()))
    };
    answer(&app, said).await
}

#[derive(Debug, Deserialize)]
struct RerankBody {
    model: Option<String>,
    query: String,
    documents: Vec<String>,
    #[serde(default)]
    top_n: usize,
    use_activation: Option<bool>,
}

async fn rerank(State(app): Shared, body: Parsed<RerankBody>) -> Response {
    let said = async {
        let body = read(body)?;
        check_model(&app.engine.config, body.model.as_deref())?;
        let pairs = pairs(std::slice::from_ref(&body.query), &body.documents)?;
        let pooled = pool(&app, "/rerank", &pairs).await?;
        let mut ranked: Vec<(usize, f64)> = pooled.rewards().enumerate().collect();
        ranked.sort_by(|one, two| two.1.total_cmp(&one.1));
        let most = if body.top_n == 0 { ranked.len() } else { body.top_n };
        let each = ranked.into_iter().take(most).map(|(index, reward)| {
            json!({
                "index": index, "document": {"text": body.documents[index]},
                "relevance_score": activated(reward, body.use_activation),
            })
        });
        Ok(json!({
            "id": app.id("rerank-", None), "model": app.engine.config.model,
            "usage": usage(pooled.tokens), "results": each.collect::<Vec<_>>(),
        }))
    };
    answer(&app, said).await
}

/// One with each of many, or each with its own, as the model reads them.
fn pairs(one: &[String], two: &[String]) -> Result<Vec<Vec<Token>>, Refusal> {
    if two.is_empty() || (one.len() != 1 && one.len() != two.len()) {
        let message = format!(
            "Input lengths must be either 1:1, 1:N or N:N, not {}:{}",
            one.len(),
            two.len()
        );
        return Err(Refusal::bad(message));
    }
    let pair = |(one, two): (&String, &String)| Tokenizer.encode(&format!("{one}{two}"));
    Ok(one.iter().cycle().zip(two).map(pair).collect())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClassifyBody {
    text: Option<Prompt>,
    input_ids: Option<Prompt>,
}

/// SGLang's: one answer for one text, a list for a list.
pub(super) async fn classify(State(app): Shared, body: Parsed<ClassifyBody>) -> Response {
    let said = async {
        let body = read(body)?;
        let ((Some(prompt), None) | (None, Some(prompt))) = (body.text, body.input_ids) else {
            return Err(Refusal::bad("Either text or input_ids must be provided, not both."));
        };
        let single = prompt.is_single();
        let prompts = prompt.lists()?;
        let pooled = pool(&app, "/classify", &prompts).await?;
        let each = prompts.iter().zip(pooled.rewards()).map(|(prompt, reward)| {
            let meta = json!({"id": app.id("", None), "prompt_tokens": prompt.len()});
            json!({"embedding": [reward], "meta_info": meta})
        });
        let mut each: Vec<Value> = each.collect();
        Ok(if single { each.remove(0) } else { each.into() })
    };
    match said.await {
        Ok(body) => Json(body).into_response(),
        Err(refusal) => refuse_plain(&refusal),
    }
}
