//! Requests to the HTTP API of queues: one for each connection, since there are two in a run.

use std::net::SocketAddr;

use serde_json::Value;

use super::dialogue::Dialogue;
use crate::error::BenchError;

/// Sends a request and waits for its answer, which is JSON or nothing.
///
/// # Errors
/// If there is no answer, or one that says something other than success.
pub(super) fn ask(
    server: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, BenchError> {
    let mut dialogue = Dialogue::open(server)?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    dialogue.say((head + &body).as_bytes())?;
    let answer = dialogue.hear_all()?;
    read(&answer).map_err(|why| BenchError::Broken(format!("{method} {path}: {why}")))
}

/// The body of an answer that says success.
fn read(answer: &[u8]) -> Result<Value, String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        return Err(format!("{status} {}", body.trim()));
    }
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(body).map_err(|error| format!("the answer is no JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_body_or_its_refusal() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{\"messages\":7}";
        assert_eq!(read(answer).unwrap()["messages"], 7);
        assert_eq!(read(b"HTTP/1.1 204 No Content\r\n\r\n"), Ok(Value::Null));
        let refusal = read(b"HTTP/1.1 422 Unprocessable\r\n\r\n{\"title\":\"no\"}\n").unwrap_err();
        assert_eq!(refusal, "422 {\"title\":\"no\"}");
        assert!(read(b"").is_err());
    }
}
