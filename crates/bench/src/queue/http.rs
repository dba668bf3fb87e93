//! Requests to the HTTP API of queues, one per connection because a run makes only a few.

use std::net::SocketAddr;

use serde_json::Value;

use super::blocking::BlockingConnection;
use crate::error::BenchError;

/// Sends a request and returns the JSON body of the response; `Null` if it is empty.
///
/// # Errors
/// If there is no response, or its status is not 2xx.
pub(super) fn request(
    server: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, BenchError> {
    let mut conn = BlockingConnection::open(server)?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    conn.send((head + &body).as_bytes())?;
    let response = conn.receive_to_end()?;
    parse_response(&response).map_err(|why| BenchError::Broken(format!("{method} {path}: {why}")))
}

/// Body of a successful response.
fn parse_response(response: &[u8]) -> Result<Value, String> {
    let text = String::from_utf8_lossy(response);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no response")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        return Err(format!("{status} {}", body.trim()));
    }
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(body).map_err(|error| format!("the response is not JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_body_or_an_error_with_the_status() {
        let response = b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{\"messages\":7}";
        assert_eq!(parse_response(response).unwrap()["messages"], 7);
        assert_eq!(parse_response(b"HTTP/1.1 204 No Content\r\n\r\n"), Ok(Value::Null));
        let refusal = parse_response(b"HTTP/1.1 422 Unprocessable\r\n\r\n{\"title\":\"no\"}\n").unwrap_err();
        assert_eq!(refusal, "422 {\"title\":\"no\"}");
        assert!(parse_response(b"").is_err());
    }
}
