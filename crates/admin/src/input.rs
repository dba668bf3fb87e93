//! Paths, queries and bodies of requests, checked.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::problem::Problem;

/// Longest time a body waits for others to go.
const ROOM: Duration = Duration::from_secs(10);

/// Most messages or receipts of one request.
pub(crate) const BATCH_MAX: usize = 1000;

/// The variable parts of a path.
pub(crate) struct At<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, app).await;
        path.map(|Path(path)| Self(path)).map_err(|error| Problem::malformed(error.body_text()))
    }
}

/// The query, in which nothing else may stand than what `T` has.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let query = Query::try_from_uri(&parts.uri);
        query.map(|Query(query)| Self(query)).map_err(|error| Problem::malformed(error.body_text()))
    }
}

/// A body as it came. The room it takes is given back when this is dropped.
pub(crate) struct Raw {
    pub(crate) bytes: Bytes,
    pub(crate) is_json: bool,
    _room: OwnedSemaphorePermit,
}

impl FromRequest<App> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let most = app.body_bytes_max();
        let size = body.size_hint().exact().unwrap_or(most as u64);
        if size > most as u64 {
            return Err(refuse(app, &parts.headers, body).await);
        }
        let room = app.room().acquire_many_owned(u32::try_from(size).unwrap_or(u32::MAX));
        let room = tokio::time::timeout(ROOM, room).await.ok().and_then(Result::ok);
        let room = room.ok_or_else(Problem::busy)?;
        let bytes = tokio::time::timeout(app.patience(), collect(body, most)).await;
        let bytes = bytes.map_err(|_| Problem::too_slow())??;
        Ok(Self { bytes, is_json: is_json(&parts.headers), _room: room })
    }
}

/// A JSON object; an empty body counts as an empty one.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let raw = Raw::from_request(request, app).await?;
        if raw.bytes.is_empty() {
            return parse(b"{}").map(Self);
        }
        if !raw.is_json {
            return Err(Problem::media_type());
        }
        parse(&raw.bytes).map(Self)
    }
}

/// Reads JSON.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            Problem::invalid(error.to_string())
        } else {
            Problem::malformed(error.to_string())
        }
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

async fn collect(mut body: Body, most: usize) -> Result<Bytes, Problem> {
    let mut first = Bytes::new();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::malformed(format!("the body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + all.len() + data.len() > most {
            return Err(Problem::body_too_large(most));
        }
        // Most bodies come in one piece, which is taken as it is.
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&data);
        }
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// Throws away a body that is not much too large, so that a client that sends first and then listens hears why.
async fn refuse(app: &App, headers: &HeaderMap, mut body: Body) -> Problem {
    let most = app.body_bytes_max();
    let asks_first = headers.contains_key(header::EXPECT);
    let is_near = body.size_hint().exact().is_some_and(|size| size <= 2 * most as u64);
    if is_near && !asks_first {
        let all = async { while let Some(Ok(_)) = body.frame().await {} };
        // Whether it came to its end makes no difference.
        tokio::time::timeout(app.patience(), all).await.ok();
    }
    Problem::body_too_large(most)
}

/// Refuses a number that is out of bounds.
pub(crate) fn within(name: &str, number: u64, bounds: RangeInclusive<u64>) -> Result<u64, Problem> {
    if bounds.contains(&number) {
        return Ok(number);
    }
    Err(Problem::invalid(format!("{name}: it must be {} to {}", bounds.start(), bounds.end())))
}

/// A list of [`BATCH_MAX`] at most; what is longer is refused before it takes memory.
#[derive(Debug)]
pub(crate) struct Several<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Several<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = Several<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of 1 to {BATCH_MAX}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Several<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = seq.next_element()? {
                    if list.len() == BATCH_MAX {
                        return Err(serde::de::Error::invalid_length(BATCH_MAX + 1, &self));
                    }
                    list.push(element);
                }
                if list.is_empty() {
                    return Err(serde::de::Error::invalid_length(0, &self));
                }
                Ok(Several(list))
            }
        }

        deserializer.deserialize_seq(List(PhantomData))
    }
}
