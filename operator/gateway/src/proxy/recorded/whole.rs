//! Recorded turns whose reply comes in one piece.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use rollwright_core::fault::{Fault, FaultKind};

use super::attempt::Begun;
use super::{Break, Ended, Turn};
use crate::engine::turn::Piece;
use crate::proxy::body::Body;
use crate::proxy::relay::silent;
use crate::proxy::reply::json;

/// The longest reply that is read.
const LONGEST: usize = 256 << 20;

pub(super) async fn answer(mut turn: Turn) -> Result<Response<Body>, Ended> {
    loop {
        let (begun, _) = turn.begin().await?;
        let api =
            if turn.made.ids.is_empty() { turn.ask.api() } else { turn.ask.api().continued_by() };
        let data = match collect(&turn, begun).await {
            Ok(data) => data,
            Err(why) => {
                turn.resume(why).await?;
                continue;
            }
        };
        let mut piece = match Piece::parse(api, &data) {
            Ok(piece) => piece,
            Err(fault) => {
                turn.resume(Break::Failed(fault)).await?;
                continue;
            }
        };
        let aborted = piece.finish.as_deref() == Some("abort");
        if aborted && (!turn.ask.continuable || piece.structured || turn.cuts_stop(&piece)) {
            // What it has is of no use: from the beginning, or from what was there before.
            turn.resume(Break::Back { restart: false }).await?;
            continue;
        }
        match turn.take(&mut piece) {
            Err(fault) if fault.kind == FaultKind::Infrastructure => {
                turn.resume(Break::Failed(fault)).await?;
                continue;
            }
            taken => taken.map_err(|fault| turn.refuse(fault))?,
        }
        if turn.first.is_none() {
            turn.first = Some(data.clone());
        }
        if aborted && !turn.spent() {
            turn.resume(Break::Back { restart: false }).await?;
            continue;
        }
        if aborted {
            piece.finish = Some("length".to_owned());
        }
        let shown = match &turn.rejoin {
            Some(rejoin) => rejoin.whole(&turn.made, &piece),
            None => turn.ask.shown.trim(api, &data, false)?,
        };
        turn.end(&piece, piece.finish.as_deref().unwrap_or("stop"));
        return Ok(json(StatusCode::OK, shown));
    }
}

/// Reads the reply to its end.
async fn collect(turn: &Turn, begun: Begun) -> Result<Bytes, Break> {
    let Begun { response, lease, abort } = begun;
    let limit = turn.shard.limits().idle_timeout;
    let body = Limited::new(response.into_body(), LONGEST).collect();
    let stopped = std::future::poll_fn(|context| match &turn.slot {
        Some(slot) => slot.poll_stop(context),
        None => std::task::Poll::Pending,
    });
    let body = tokio::select! {
        biased;
        body = tokio::time::timeout(limit, body) => body,
        stop = stopped => return Err(Break::Back { restart: stop.restart }),
    };
    match body {
        Ok(Ok(body)) => {
            lease.give_back();
            if let Some(abort) = abort {
                abort.defuse();
            }
            Ok(body.to_bytes())
        }
        Ok(Err(error)) => {
            let message = format!("the engine's reply broke off: {error}");
            Err(Break::Failed(Fault::new(FaultKind::Infrastructure, "EngineBroke", message)))
        }
        Err(_) => Err(Break::Failed(silent(limit))),
    }
}
