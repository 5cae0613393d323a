//! Recorded turns whose reply is streamed.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body::Body as _;
use rollwright_core::fault::{Fault, FaultKind};

use super::attempt::Begun;
use super::{Break, Ended, Turn};
use crate::engine::dialect::Api;
use crate::engine::sse::{Events, event};
use crate::engine::turn::{Piece, Rejoin};
use crate::proxy::abort::AbortByName;
use crate::proxy::body::{Body, BoxError};
use crate::proxy::exchange::Lease;
use crate::proxy::incoming::EngineBody;
use crate::proxy::relay::{Idle, broke_off, error_event, silent};

/// The longest event of an engine. `SGLang` repeats the whole reply in each.
const EVENT: usize = 64 << 20;
const DONE: &[u8] = b"[DONE]";

/// A stream on its way.
struct Streaming {
    // Dropped in this order: the engine's connection is closed before its slot is free.
    flow: Option<Flow>,
    turn: Turn,
    /// Text to be sent with the next piece.
    held: String,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// The reply said why it ended; only counts may follow.
    Finished,
    Over,
}

/// One engine's events.
struct Flow {
    body: EngineBody,
    lease: Lease,
    abort: Option<AbortByName>,
    events: Events,
    idle: Idle,
    api: Api,
}

/// What comes next from an engine.
enum Next {
    Data(Bytes),
    End,
}

pub(super) async fn answer(turn: Turn) -> Result<Response<Body>, Ended> {
    let mut streaming = Streaming { flow: None, turn, held: String::new(), state: State::Running };
    // Nothing is sent before the log has taken the prompt.
    let first = streaming.next().await?.unwrap_or_default();
    streaming.turn.sent = true;
    let rest = stream::unfold(Some(streaming), |streaming| async move {
        let mut streaming = streaming?;
        match streaming.next().await {
            Ok(Some(bytes)) => Some((Ok(bytes), Some(streaming))),
            Ok(None) => None,
            Err(ended) => Some((Ok(error_event(&ended.into_fault())), None)),
        }
    });
    let pieces = stream::once(async move { Ok::<_, BoxError>(first) }).chain(rest);
    let mut response = Response::new(Body::pieces(pieces));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

impl Streaming {
    /// The next bytes for the client.
    async fn next(&mut self) -> Result<Option<Bytes>, Ended> {
        loop {
            if self.state == State::Over {
                return Ok(None);
            }
            if self.flow.is_none() {
                self.connect().await?;
            }
            let Some(flow) = &mut self.flow else { continue };
            let data = match flow.next(&self.turn).await {
                Ok(Next::Data(data)) if data != DONE => data,
                // All tokens are there, whatever follows; only counts may be missing.
                _ if self.state == State::Finished => return Ok(Some(self.finish())),
                // The reason is to be known before the end.
                Ok(_) => {
                    let message = "the engine ended its reply without a reason";
                    let fault = Fault::new(FaultKind::Infrastructure, "EngineBroke", message);
                    self.resume(Break::Failed(fault)).await?;
                    continue;
                }
                Err(_) if self.turn.spent() => return self.cut().map(Some),
                Err(why) => {
                    self.resume(why).await?;
                    continue;
                }
            };
            let api = flow.api;
            match Piece::parse(api, &data) {
                Ok(piece) => {
                    if let Some(bytes) = self.piece(api, data, piece).await? {
                        return Ok(Some(bytes));
                    }
                }
                Err(fault) => self.resume(Break::Failed(fault)).await?,
            }
        }
    }

    async fn connect(&mut self) -> Result<(), Ended> {
        let (begun, held) = self.turn.begin().await?;
        self.held.push_str(&held);
        let Begun { response, lease, abort } = begun;
        let ask = &self.turn.ask;
        let goes_on = !self.turn.made.ids.is_empty();
        self.flow = Some(Flow {
            body: response.into_body(),
            lease,
            abort,
            events: Events::new(EVENT),
            idle: Idle::new(self.turn.shard.limits().idle_timeout),
            api: if goes_on { ask.api().continued_by() } else { ask.api() },
        });
        Ok(())
    }

    async fn resume(&mut self, why: Break) -> Result<(), Ended> {
        // Closing the connection aborts what still runs there.
        self.flow = None;
        let held = self.turn.resume(why).await?;
        self.held.push_str(&held);
        Ok(())
    }

    /// The last event of a turn that broke off after its last token.
    fn cut(&mut self) -> Result<Bytes, Ended> {
        let turn = &mut self.turn;
        let first = turn.first.as_deref().unwrap_or(b"{}");
        let rejoin = Rejoin::new(turn.ask.api(), turn.ask.shown, first)?;
        let piece = Piece { choice: true, ..Piece::default() };
        let last = event(&rejoin.event(&piece, &turn.made, Some("length")));
        turn.end(&piece, "length");
        Ok([last, self.finish()].concat().into())
    }

    /// Takes in a piece; returns the client's form of it.
    async fn piece(
        &mut self,
        api: Api,
        data: Bytes,
        mut piece: Piece,
    ) -> Result<Option<Bytes>, Ended> {
        let turn = &mut self.turn;
        let mut aborted = piece.finish.as_deref() == Some("abort");
        let lost = !turn.ask.continuable || piece.structured || turn.structured;
        if aborted && lost && !turn.sent {
            self.resume(Break::Back { restart: false }).await?;
            return Ok(None);
        }
        match turn.take(&mut piece) {
            Err(fault) if fault.kind == FaultKind::Infrastructure => {
                self.resume(Break::Failed(fault)).await?;
                return Ok(None);
            }
            taken => taken.map_err(|fault| turn.refuse(fault))?,
        }
        if turn.first.is_none() {
            turn.first = Some(data.clone());
        }
        if aborted && turn.spent() {
            piece.finish = Some("length".to_owned());
            aborted = false;
        }
        let brings = !piece.text.is_empty() || !piece.ids.is_empty();
        let shown = match &turn.rejoin {
            Some(rejoin) => {
                piece.text.insert_str(0, &std::mem::take(&mut self.held));
                let finish = piece.finish.as_deref().filter(|_| !aborted);
                rejoin.event(&piece, &turn.made, finish)
            }
            None => turn.ask.shown.trim(api, &data, aborted)?,
        };
        if aborted {
            self.resume(Break::Back { restart: false }).await?;
            return Ok(brings.then(|| event(&shown)));
        }
        if let Some(finish) = piece.finish.take() {
            turn.end(&piece, &finish);
            self.state = State::Finished;
        }
        Ok(Some(event(&shown)))
    }

    /// The end of the stream.
    fn finish(&mut self) -> Bytes {
        self.state = State::Over;
        if let Some(Flow { body, lease, abort, .. }) = self.flow.take() {
            if body.is_end_stream() {
                lease.give_back();
            }
            if let Some(abort) = abort {
                abort.defuse();
            }
        }
        event(DONE)
    }
}

impl Flow {
    async fn next(&mut self, turn: &Turn) -> Result<Next, Break> {
        loop {
            if let Some(data) = self.events.next_event() {
                return Ok(Next::Data(data));
            }
            let frame = poll_fn(|context| {
                if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
                    return Poll::Ready(Ok(frame));
                }
                if let Some(Poll::Ready(stop)) =
                    turn.slot.as_ref().map(|slot| slot.poll_stop(context))
                {
                    return Poll::Ready(Err(Break::Back { restart: stop.restart }));
                }
                let limit = turn.shard.limits().idle_timeout;
                self.idle.poll(context).map(|()| Err(Break::Failed(silent(limit))))
            })
            .await?;
            self.idle.touch();
            match frame {
                None => return Ok(Next::End),
                Some(Err(error)) => return Err(Break::Failed(broke_off(&error))),
                Some(Ok(frame)) => {
                    let Ok(piece) = frame.into_data() else { continue };
                    self.events.push(&piece).map_err(|error| {
                        let message = format!("the engine's reply cannot be read: {error}");
                        let fault = Fault::new(FaultKind::Infrastructure, "EngineReply", message);
                        Break::Failed(fault)
                    })?;
                }
            }
        }
    }
}
