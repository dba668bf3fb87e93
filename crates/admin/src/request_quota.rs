//! The quota of HTTP requests.

use mainstem_quota::{HTTP_KEYS, QuotaKey};
use mainstem_security::{Principal, Published, SecurityState};

use crate::clock::now_ms;
use crate::problem::Problem;

/// Counts a request of a user.
///
/// # Errors
/// The user has exceeded the quota.
pub(crate) fn count_request(
    published: &Published,
    state: &SecurityState,
    principal: &Principal,
) -> Result<(), Problem> {
    if state.quotas().is_empty() {
        return Ok(());
    }
    let now_ms = now_ms();
    let user = principal.user().map(|user| &**user);
    let Some(quotas) = published.client_quotas(state, (user, ""), HTTP_KEYS, now_ms) else { return Ok(()) };
    let Some(bucket) = quotas.get(QuotaKey::HttpRequestRate) else { return Ok(()) };
    bucket.try_take(usize::MAX, 1, now_ms).map_err(|wait_ms| {
        published.buckets().note_refused(QuotaKey::HttpRequestRate);
        log::debug!("http: a request of {principal} is refused: the quota http_request_rate is exceeded");
        Problem::over_quota(wait_ms)
    })
}
