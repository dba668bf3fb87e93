//! `ListTransactions`, versions 0 to 2: lists transactional ids by state, producer, duration and pattern.

use hashbrown::HashSet;
use mainstem_coordinator::transaction::{Producer, State, Transactions};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::list_transactions::{
    ListTransactionsRequest, ListTransactionsResponse, TransactionState,
};
use mainstem_runtime::Io;
use mainstem_security::{Action, ResourceKind};
use regex_lite::{Regex, RegexBuilder};

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Most memory of a compiled pattern, bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// Longest pattern, bytes. It is parsed before the size of what it compiles to is known.
const PATTERN_TEXT_MAX: usize = 1024;

/// Filters of states that count, of a handful that make sense.
const STATE_FILTERS_MAX: usize = 1_000;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: ListTransactionsRequest,
) {
    let mut response = match pattern(request.transactional_id_pattern.as_deref()) {
        Ok(pattern) => shard
            .with_transactions(io, |machine, now_ms| list(machine, now_ms, &request, pattern.as_ref()))
            .unwrap_or_default(),
        Err(code) => {
            ListTransactionsResponse { error_code: code as i16, ..ListTransactionsResponse::default() }
        }
    };
    let is_visible = |id: &str| call.allows(Action::Describe, ResourceKind::TransactionalId, id);
    response.transaction_states.retain(|state| is_visible(&state.transactional_id));
    shard.reply::<ListTransactionsRequest>(io, &call, &response);
}

/// The expression that whole transactional ids must match (KIP-1152).
fn pattern(text: Option<&str>) -> Result<Option<Regex>, ErrorCode> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    if text.len() > PATTERN_TEXT_MAX {
        return Err(ErrorCode::InvalidRegularExpression);
    }
    RegexBuilder::new(&format!("^(?:{text})$"))
        .size_limit(PATTERN_BYTES_MAX)
        .build()
        .map(Some)
        .map_err(|_| ErrorCode::InvalidRegularExpression)
}

fn list(
    machine: &Transactions,
    now_ms: u64,
    request: &ListTransactionsRequest,
    pattern: Option<&Regex>,
) -> ListTransactionsResponse {
    let ListTransactionsRequest { state_filters, producer_id_filters, duration_filter, .. } = request;
    let state_filters = &state_filters[..state_filters.len().min(STATE_FILTERS_MAX)];
    let producer_ids: HashSet<i64, foldhash::fast::RandomState> =
        producer_id_filters.iter().copied().collect();
    let is_wanted = |(id, state, producer, started_ms): &(&str, State, Producer, u64)| {
        let age_ms = now_ms.saturating_sub(*started_ms);
        (state_filters.is_empty() || state_filters.iter().any(|name| name == state.name()))
            && (producer_ids.is_empty() || producer_ids.contains(&producer.id))
            && u64::try_from(*duration_filter).map_or(true, |least_ms| age_ms > least_ms)
            && pattern.is_none_or(|pattern| pattern.is_match(id))
    };
    let state = |(id, state, producer, _): (&str, State, Producer, u64)| TransactionState {
        transactional_id: id.into(),
        producer_id: producer.id,
        transaction_state: state.name().into(),
    };
    let unknown = state_filters.iter().filter(|name| !State::is_name(name));
    ListTransactionsResponse {
        unknown_state_filters: unknown.cloned().collect(),
        transaction_states: machine.list().filter(is_wanted).map(state).collect(),
        ..ListTransactionsResponse::default()
    }
}
