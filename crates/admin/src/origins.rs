//! Which web pages may use the API.
//!
//! Browsers let any page send requests to any server, with the log-in that the browser has for it, and send the origin
//! of the page along. Programs other than browsers send none. A page is served if its origin is listed, and is told so
//! in the words of CORS (Fetch standard, "CORS protocol"): before a request that a form could not send, the browser
//! asks (a preflight), and afterwards it shows the page only responses that name its origin.
//!
//! Nothing is allowed by default, the origin of this server neither: it has no pages, so who speaks for it is a page of
//! another program on the same address.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

use crate::problem::Problem;

/// How long a browser need not ask again, seconds.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");
/// Headers that requests to the API have.
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type");
/// Headers of responses that pages may read, besides the content type.
const RESPONSE_HEADERS: HeaderValue = HeaderValue::from_static("retry-after");
const TRUE: HeaderValue = HeaderValue::from_static("true");
/// Private Network Access: a page of the internet asks for a server in the network of the browser.
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// The origin of the page that has sent a request, if a page has.
///
/// # Errors
/// The page may not use the API.
pub(crate) fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<Option<HeaderValue>, Problem> {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(None) };
    let text = origin.to_str().unwrap_or_default();
    let is_allowed = allowed.iter().any(|listed| listed.eq_ignore_ascii_case(text));
    if is_allowed && origins.next().is_none() {
        Ok(Some(origin.clone()))
    } else {
        Err(Problem::cross_site(text))
    }
}

/// Whether a browser asks if a page may send a request.
pub(crate) fn is_preflight(request: &Request) -> bool {
    *request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The response to a browser that asks for a page that may. It has no log-in then, so nothing else is checked.
pub(crate) fn preflight(request: &Request) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    if request.headers().contains_key(REQUEST_PRIVATE_NETWORK) {
        headers.insert(ALLOW_PRIVATE_NETWORK, TRUE);
    }
    response
}

/// Lets the page of an allowed origin read a response, also to requests with the log-in of the browser.
pub(crate) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, RESPONSE_HEADERS);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_origins_are_allowed() {
        let allowed = ["https://console.example.com".to_owned()];
        let check = |origins: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for origin in origins {
                headers.append(header::ORIGIN, HeaderValue::from_static(origin));
            }
            check_origin(&headers, &allowed).map(|origin| origin.is_some()).ok()
        };
        assert_eq!(check(&[]), Some(false));
        assert_eq!(check(&["https://console.example.com"]), Some(true));
        assert_eq!(check(&["HTTPS://Console.example.com"]), Some(true));
        for origin in [
            "",
            "null",
            "*",
            "http://console.example.com",
            "https://console.example.com:8443",
            "https://console.example.com.evil.example",
            "https://console.example.com, https://evil.example",
            "https://evil.example",
        ] {
            assert_eq!(check(&[origin]), None, "{origin}");
        }
        assert_eq!(check(&["https://console.example.com", "https://evil.example"]), None);
    }
}
