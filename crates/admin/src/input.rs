//! Extractors for paths, queries and bodies of requests, with their limits.
//!
//! All bodies together fit into a memory budget: a request reserves its `content-length`, or the maximum if it sends
//! none, before its body is read, and releases it when [`RawBody`] is dropped. A body that arrives too slowly is
//! rejected, so that a slow client cannot hold the budget.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use mainstem_queue_core::check_group_name;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::problem::Problem;

/// Longest wait for room in the memory budget for bodies.
const BODY_BUDGET_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest lease: 12 hours, in ms.
pub(crate) const LEASE_MS_MAX: u64 = 12 * 60 * 60 * 1000;
/// Maximum number of messages or receipts in one request.
pub(crate) const BATCH_MAX: usize = 1000;

/// Largest integer that every JSON implementation represents exactly: 2^53 - 1.
pub(crate) const INTEGER_MAX: u64 = (1 << 53) - 1;

/// The variable segments of the path.
pub(crate) struct PathParams<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for PathParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, app).await;
        path.map(|Path(path)| Self(path)).map_err(|error| Problem::malformed(error.body_text()))
    }
}

/// Parameters of an operation, in the query, in a JSON body, or in both. `T` rejects unknown parameters.
pub(crate) struct Params<T>(pub(crate) T);

/// Optional parameters of an operation.
pub(crate) trait Parameters: DeserializeOwned + Send {
    /// Rejects values out of bounds.
    fn check(&self) -> Result<(), Problem>;

    /// Takes what is not set here from `defaults`.
    #[must_use]
    fn or(self, defaults: Self) -> Self;
}

impl<T: Parameters> FromRequest<App> for Params<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let QueryParams(query): QueryParams<T> = QueryParams::from_request_parts(&mut parts, app).await?;
        query.check()?;
        let JsonBody(body): JsonBody<T> =
            JsonBody::from_request(Request::from_parts(parts, body), app).await?;
        body.check()?;
        // The query is what a user changes about a request with a prepared body.
        Ok(Self(query.or(body)))
    }
}

/// The query. `T` rejects unknown parameters.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let query = Query::try_from_uri(&parts.uri);
        query.map(|Query(query)| Self(query)).map_err(|error| Problem::malformed(error.body_text()))
    }
}

/// A request body of any content type. Dropping it releases its part of the memory budget.
pub(crate) struct RawBody {
    pub(crate) bytes: Bytes,
    pub(crate) is_json: bool,
    _permit: OwnedSemaphorePermit,
}

impl FromRequest<App> for RawBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let max_bytes = app.body_bytes_max();
        let size = body.size_hint().exact().unwrap_or(max_bytes as u64);
        if size > max_bytes as u64 {
            return Err(reject_too_large(app, &parts.headers, body).await);
        }
        let permit = app.body_budget().acquire_many_owned(u32::try_from(size).unwrap_or(u32::MAX));
        let permit = tokio::time::timeout(BODY_BUDGET_TIMEOUT, permit).await.ok().and_then(Result::ok);
        let permit = permit.ok_or_else(Problem::busy)?;
        let bytes = tokio::time::timeout(app.request_timeout(), collect(body, max_bytes)).await;
        let bytes = bytes.map_err(|_| Problem::too_slow())??;
        Ok(Self { bytes, is_json: is_json(&parts.headers), _permit: permit })
    }
}

/// A JSON object. An empty body counts as `{}`.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let raw = RawBody::from_request(request, app).await?;
        if raw.bytes.is_empty() {
            return parse(b"{}").map(Self);
        }
        if !raw.is_json {
            return Err(Problem::media_type());
        }
        parse(&raw.bytes).map(Self)
    }
}

/// A JSON object. Structs that derive [`Deserialize`] also accept an array of their fields.
#[derive(Debug)]
pub(crate) struct JsonObject<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JsonObject<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(JsonObject)
            }
        }

        deserializer.deserialize_map(Object(PhantomData))
    }
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let object = serde_json::from_slice(bytes).map(|JsonObject(object)| object);
    object.map_err(|error| {
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

async fn collect(mut body: Body, max_bytes: usize) -> Result<Bytes, Problem> {
    let mut first = Bytes::new();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::malformed(format!("the body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + all.len() + data.len() > max_bytes {
            return Err(Problem::body_too_large(max_bytes));
        }
        // Most bodies arrive in one frame, which is used without copying.
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&data);
        }
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// Reads and discards a body of up to twice the limit, so that a client that sends its whole body before it reads gets
/// the response instead of a reset connection.
async fn reject_too_large(app: &App, headers: &HeaderMap, mut body: Body) -> Problem {
    let max_bytes = app.body_bytes_max();
    let expects_continue = headers.contains_key(header::EXPECT);
    let is_drainable = body.size_hint().exact().is_some_and(|size| size <= 2 * max_bytes as u64);
    if is_drainable && !expects_continue {
        let drained = async { while let Some(Ok(_)) = body.frame().await {} };
        // The response is the same if the body is incomplete.
        tokio::time::timeout(app.request_timeout(), drained).await.ok();
    }
    Problem::body_too_large(max_bytes)
}

/// Rejects the name of a group that cannot exist.
pub(crate) fn check_group(name: Option<&str>) -> Result<(), Problem> {
    name.map_or(Ok(()), check_group_name).map_err(|error| Problem::from(&error))
}

/// Rejects a number outside of `bounds`, if there is one.
pub(crate) fn check_optional(
    name: &str,
    number: Option<u64>,
    bounds: RangeInclusive<u64>,
) -> Result<(), Problem> {
    number.map_or(Ok(()), |number| check_range(name, number, bounds).map(drop))
}

/// Rejects a number outside of `bounds`.
pub(crate) fn check_range(name: &str, number: u64, bounds: RangeInclusive<u64>) -> Result<u64, Problem> {
    if bounds.contains(&number) {
        return Ok(number);
    }
    Err(Problem::invalid(format!("{name}: must be {} to {}", bounds.start(), bounds.end())))
}

/// Deserializes optional text. JSON's `null` is not the same as a field that is not set.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

/// Deserializes an optional integer: digits in a query, a number in JSON, which does not tell `5` from `5.0`.
pub(crate) fn integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Integer;

    impl Visitor<'_> for Integer {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an integer from 0 on")
        }

        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self::Value, E> {
            Ok(Some(number))
        }

        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Self::Value, E> {
            Err(E::invalid_value(Unexpected::Signed(number), &self))
        }

        fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Self::Value, E> {
            let invalid = || E::invalid_value(Unexpected::Float(number), &self);
            whole(number).map(Some).ok_or_else(invalid)
        }
    }

    deserializer.deserialize_u64(Integer)
}

/// The integer that equals `number`, if there is one from 0 to [`INTEGER_MAX`].
pub(crate) fn whole(number: f64) -> Option<u64> {
    let digits = (number.fract() == 0.0).then(|| format!("{number:.0}"))?;
    digits.parse().ok().filter(|whole| *whole <= INTEGER_MAX)
}

/// A list of 1 to [`BATCH_MAX`] elements. Parsing fails at the first element beyond that, before it takes memory.
#[derive(Debug)]
pub(crate) struct BoundedList<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = BoundedList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of 1 to {BATCH_MAX}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<BoundedList<T>, A::Error> {
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
                Ok(BoundedList(list))
            }
        }

        deserializer.deserialize_seq(List(PhantomData))
    }
}
