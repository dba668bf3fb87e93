//! `AlterUserScramCredentials`, version 0: sets and deletes the SCRAM keys of users (KIP-554).
//!
//! The changes of a user are made together or not at all. A user whose last verifier is deleted is deleted with it. The
//! keys of other mechanisms and the password hash stay as they are, as Kafka keeps its mechanisms apart.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_user_scram_credentials::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
};
use mainstem_runtime::Io;
use mainstem_security::{
    Change, ChangeError, SCRAM_ITERATIONS_MIN, ScramAlgorithm, ScramKeys, SecurityState, User,
    check_user_name, left_api_keys,
};

use super::describe_user_scram_credentials::algorithm_of;
use crate::append_error::AppendError;
use crate::pending::AfterSecurityChange;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Most iterations, as in Kafka: its clients refuse more.
const ITERATIONS_MAX: u32 = 16_384;

/// What a request wants of one user.
type UserChanges = Vec<(ScramAlgorithm, Option<ScramKeys>)>;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: AlterUserScramCredentialsRequest,
) {
    let mut users: BTreeMap<String, Result<UserChanges, AppendError>> = BTreeMap::new();
    for deletion in &request.deletions {
        let change = algorithm(deletion.mechanism).map(|algorithm| (algorithm, None));
        add(&mut users, &deletion.name, change);
    }
    for upsertion in &request.upsertions {
        add(&mut users, &upsertion.name, keys(upsertion));
    }
    if let Err(code) = call.check_security_change(shard.env.shared().security()) {
        for outcome in users.values_mut() {
            *outcome = Err(code.into());
        }
    } else if let Some(security) = shard.env.shared().security() {
        let state = security.host.published().state();
        for (name, outcome) in &mut users {
            if let Ok(changes) = outcome
                && let Err(error) = check_deletions(&state, name, changes)
            {
                *outcome = Err(error);
            }
        }
    } else {
        let disabled = || AppendError::new(ErrorCode::SecurityDisabled, "The broker has no users.");
        for outcome in users.values_mut() {
            *outcome = Err(disabled());
        }
    }
    let changes: Vec<(String, UserChanges)> = users
        .iter()
        .filter_map(|(name, outcome)| Some((name.clone(), outcome.as_ref().ok()?.clone())))
        .collect();
    let results = users.into_iter().map(|(user, outcome)| {
        let AppendError { code, message, .. } = outcome.err().unwrap_or_else(|| ErrorCode::None.into());
        AlterUserScramCredentialsResult { user, error_code: code as i16, error_message: message }
    });
    let results = results.collect();
    if changes.is_empty() {
        return answer(shard, io, &call, results, &Ok(Vec::new()));
    }
    let after = AfterSecurityChange::AlterUserScramCredentials { call, results };
    shard.change_security(io, after, Box::new(move |state| changed_users(state, &changes)));
}

/// The changes are durable, or were refused.
pub(crate) fn answer(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    mut results: Vec<AlterUserScramCredentialsResult>,
    outcome: &Result<Vec<Change>, ChangeError>,
) {
    if let Err(error) = outcome {
        let (code, message) = super::security_change_error(error);
        let untouched = results.iter_mut().filter(|result| result.error_code == ErrorCode::None as i16);
        for result in untouched {
            (result.error_code, result.error_message) = (code as i16, Some(message.clone()));
        }
    }
    let response = AlterUserScramCredentialsResponse { throttle_time_ms: 0, results };
    shard.reply::<AlterUserScramCredentialsRequest>(io, call, &response);
}

fn add(
    users: &mut BTreeMap<String, Result<UserChanges, AppendError>>,
    name: &str,
    change: Result<(ScramAlgorithm, Option<ScramKeys>), AppendError>,
) {
    let outcome = users.entry(name.to_owned()).or_insert_with(|| check_name(name).map(|()| Vec::new()));
    let Ok(changes) = outcome else { return };
    match change {
        Ok((algorithm, _)) if changes.iter().any(|(known, _)| *known == algorithm) => {
            let message = "A user credential cannot be altered twice in the same request".to_owned();
            *outcome = Err(AppendError::new(ErrorCode::DuplicateResource, message));
        }
        Ok(change) => changes.push(change),
        Err(error) => *outcome = Err(error),
    }
}

fn check_name(name: &str) -> Result<(), AppendError> {
    check_user_name(name).map_err(|error| unacceptable(error.to_string()))
}

fn unacceptable(message: impl Into<String>) -> AppendError {
    AppendError::new(ErrorCode::UnacceptableCredential, message)
}

fn algorithm(mechanism: i8) -> Result<ScramAlgorithm, AppendError> {
    let unknown = || AppendError::new(ErrorCode::UnsupportedSaslMechanism, "Unknown SCRAM mechanism");
    algorithm_of(mechanism).ok_or_else(unknown)
}

fn keys(upsertion: &ScramCredentialUpsertion) -> Result<(ScramAlgorithm, Option<ScramKeys>), AppendError> {
    let ScramCredentialUpsertion { mechanism, iterations, salt, salted_password, .. } = upsertion;
    let algorithm = algorithm(*mechanism)?;
    let iterations = u32::try_from(*iterations).unwrap_or(0);
    if iterations < SCRAM_ITERATIONS_MIN {
        return Err(unacceptable("Too few iterations"));
    }
    if iterations > ITERATIONS_MAX {
        return Err(unacceptable("Too many iterations"));
    }
    let keys = ScramKeys::from_salted_password(algorithm, salted_password, salt, iterations);
    let keys = keys.map_err(|error| unacceptable(error.to_string()))?;
    Ok((algorithm, Some(keys)))
}

/// A key that is deleted must exist.
fn check_deletions(state: &SecurityState, name: &str, changes: &UserChanges) -> Result<(), AppendError> {
    let user = state.user(name);
    for (algorithm, keys) in changes {
        if keys.is_none() && user.and_then(|user| user.scram(*algorithm)).is_none() {
            let message = "Attempt to delete a user credential that does not exist";
            return Err(AppendError::new(ErrorCode::ResourceNotFound, message));
        }
    }
    Ok(())
}

fn changed_users(
    state: &SecurityState,
    changes: &[(String, UserChanges)],
) -> Result<Vec<Change>, ChangeError> {
    let mut made = Vec::new();
    for (name, changes) in changes {
        let known = state.user(name).map(|user| User::clone(user));
        let has_api_keys = known.is_some() && state.api_keys().of_user(name).next().is_some();
        made.extend(left_api_keys(state, name));
        let mut user = match known {
            Some(user) => user,
            None => User::new(name).map_err(ChangeError::Invalid)?,
        };
        for (algorithm, keys) in changes {
            user.set_scram(*algorithm, keys.clone());
        }
        let has_verifier = user.password.is_some()
            || user.scram_sha_256.is_some()
            || user.scram_sha_512.is_some()
            || has_api_keys;
        made.push(if has_verifier || !user.roles.is_empty() {
            Change::PutUser(Arc::new(user))
        } else {
            Change::DeleteUser(user.name)
        });
    }
    Ok(made)
}
