//! Which names of this server a request may use.
//!
//! A web page can point a name of its own domain at this server's address, and then counts as being of the same origin
//! as the API: no `Origin` header gives it away (DNS rebinding). Only the name in the request does, so requests must
//! name the server by an IP address, which cannot be rebound, by `localhost`, or by a name that the operator allows.

use std::net::IpAddr;
use std::str::FromStr;

use axum::extract::Request;
use axum::http::header;
use axum::http::uri::Authority;

use crate::problem::Problem;

/// Allows every name.
const ANY: &str = "*";

/// Checks the name by which `request` addresses the server.
pub(crate) fn check_host(request: &Request, allowed: &[String]) -> Result<(), Problem> {
    let named = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let named = named.and_then(|host| Authority::from_str(host).ok());
    // The absolute form of a request has a name, too; a proxy in front may have used either.
    for authority in request.uri().authority().into_iter().chain(&named) {
        if !is_allowed(authority.host(), allowed) {
            return Err(Problem::host(authority.host()));
        }
    }
    Ok(())
}

fn is_allowed(host: &str, allowed: &[String]) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || allowed.iter().any(|name| name == ANY || name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn check(uri: &str, host: Option<&str>, allowed: &[&str]) -> bool {
        let mut request = Request::builder().uri(uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let allowed: Vec<String> = allowed.iter().copied().map(str::to_owned).collect();
        check_host(&request.body(Body::empty()).unwrap(), &allowed).is_ok()
    }

    #[test]
    fn allows_addresses_localhost_and_configured_names() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.1.2.3",
            "localhost:80",
            "LocalHost",
            "localhost.",
        ] {
            assert!(check("/", Some(host), &[]), "{host}");
        }
        for host in
            ["example.com", "localhost.example.com:8080", "127.0.0.1.nip.io", "mainstem", "2130706433"]
        {
            assert!(!check("/", Some(host), &["other"]), "{host}");
            assert!(check("/", Some(host), &["*"]), "{host}");
        }
        assert!(check("/", Some("Mainstem.example.com:80"), &["mainstem.example.COM"]));
        assert!(check("/", None, &[]), "HTTP/1.0 needs no host");
        assert!(!check("http://example.com/", Some("localhost"), &[]));
        assert!(!check("http://localhost/", Some("example.com"), &[]));
    }
}
