//! Password files of mosquitto: one `name:hash` per line.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::SecurityError;
use crate::password::PasswordHash;
use crate::state::MAX_USERS;
use crate::user::User;

/// Reads the text of a password file. Empty lines and lines that begin with `#` are skipped; of two lines with one
/// name the last counts, as in mosquitto.
///
/// # Errors
/// The first invalid line. A password in plain text, which `mosquitto_passwd -U` would hash, is invalid.
pub fn read_password_file(text: &str) -> Result<BTreeMap<Arc<str>, Arc<User>>, SecurityError> {
    let mut users = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let user = read_line(line)
            .map_err(|error| SecurityError::PasswordFile { line: at + 1, error: Box::new(error) })?;
        users.insert(Arc::clone(&user.name), Arc::new(user));
        if users.len() > MAX_USERS {
            return Err(SecurityError::Limit("a password file has at most 100000 users"));
        }
    }
    Ok(users)
}

fn read_line(line: &str) -> Result<User, SecurityError> {
    let (name, hash) = line.split_once(':').ok_or(SecurityError::PasswordHash("is missing"))?;
    let mut user = User::new(name)?;
    user.password = Some(PasswordHash::parse(hash)?);
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_users() {
        let text =
            "# users\n\nalice:$7$101$c2FsdHNhbHRzYWx0$YWJjZGVm\r\nbob:$7$101$c2FsdHNhbHRzYWx0$YWJjZGVm\n";
        let users = read_password_file(text).unwrap();
        assert_eq!(users.keys().map(|name| &**name).collect::<Vec<_>>(), ["alice", "bob"]);
    }

    #[test]
    fn the_first_invalid_line_is_named() {
        for text in ["a:$7$101$YWJj$YWJj\nbob:secret\n", "\nbob\n", "#\n:$7$101$YWJj$YWJj\n"] {
            let error = read_password_file(text).unwrap_err();
            assert!(matches!(error, SecurityError::PasswordFile { line: 2, .. }), "{error}");
        }
    }
}
