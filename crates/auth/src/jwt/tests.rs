//! Tests of tokens: what is accepted, and the ways to forge one.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use proptest::prelude::*;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SignatureAlgorithm};
use serde_json::{Value, json};

use super::*;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn rules() -> TokenRules {
    TokenRules {
        issuers: vec!["https://id.example.com".into()],
        audiences: vec!["mainstem".into(), "other".into()],
        leeway_s: 10,
        user_claim: "sub".into(),
        roles_claim: "realm_access.roles".into(),
    }
}

fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "sub": "alice", "iss": "https://id.example.com", "aud": ["mainstem"], "exp": now_s() + 60, "nbf": now_s() - 5,
        "realm_access": {"roles": ["ops", "staff"]},
    });
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
    }
    claims
}

fn hmac(claims: &Value) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(SECRET)).unwrap()
}

fn verify(token: &str, keys: &[Key]) -> Result<TokenUser, Refusal> {
    super::token::verify(token.as_bytes(), keys, &rules())
}

/// Text in the alphabet of Base64 for URLs, without padding.
fn encoded(text: &str) -> String {
    encoded_bytes(text.as_bytes())
}

fn encoded_bytes(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

#[test]
fn claims_become_the_user_and_its_roles() {
    let keys = of_secret(SECRET).unwrap();
    let user = verify(&hmac(&claims(&json!({}))), &keys).unwrap();
    assert_eq!(&*user.user, "alice");
    assert_eq!(user.proof.roles, ["ops".into(), "staff".into()]);
    assert!(user.proof.is_external);
    let expires_s = user.proof.expires_ms.unwrap() / 1000;
    assert!((now_s() + 65..=now_s() + 70).contains(&expires_s), "with the leeway");
    for (change, is_valid) in [
        (json!({"exp": now_s() - 5}), true),
        (json!({"exp": now_s() - 20}), false),
        (json!({"exp": null}), false),
        (json!({"exp": "soon"}), false),
        (json!({"nbf": now_s() + 5}), true),
        (json!({"nbf": now_s() + 60}), false),
        (json!({"nbf": null}), true),
        (json!({"iss": "https://evil.example.com"}), false),
        (json!({"iss": null}), false),
        (json!({"aud": "other"}), true),
        (json!({"aud": "elsewhere"}), false),
        (json!({"aud": null}), false),
        (json!({"sub": null}), false),
        (json!({"sub": 7}), false),
        (json!({"sub": ""}), false),
        (json!({"sub": "a\nb"}), false),
        (json!({"sub": "x".repeat(256)}), false),
        (json!({"realm_access": null}), true),
        (json!({"realm_access": {"roles": "ops staff"}}), true),
        (json!({"realm_access": {"roles": [1]}}), false),
        (json!({"realm_access": {"roles": {}}}), false),
        (json!({"realm_access": {"roles": vec!["r"; mainstem_security::MAX_ROLES + 1]}}), false),
    ] {
        assert_eq!(verify(&hmac(&claims(&change)), &keys).is_ok(), is_valid, "{change}");
    }
}

#[test]
fn each_kind_of_key_verifies_its_algorithms() {
    let kinds: [(&'static SignatureAlgorithm, Algorithm); 3] = [
        (&PKCS_ECDSA_P256_SHA256, Algorithm::ES256),
        (&PKCS_ECDSA_P384_SHA384, Algorithm::ES384),
        (&PKCS_ED25519, Algorithm::EdDSA),
    ];
    for (kind, algorithm) in kinds {
        let pair = KeyPair::generate_for(kind).unwrap();
        let der = pair.serialize_der();
        let signing = match algorithm {
            Algorithm::EdDSA => EncodingKey::from_ed_der(&der),
            _ => EncodingKey::from_ec_der(&der),
        };
        let token = encode(&Header::new(algorithm), &claims(&json!({})), &signing).unwrap();
        let pem = pair.public_key_pem();
        let keys = of_pem(pem.as_bytes()).unwrap();
        assert_eq!(keys[0].algorithms, [algorithm]);
        assert!(verify(&token, &keys).is_ok(), "{algorithm:?}");
        assert!(verify(&token, &of_secret(SECRET).unwrap()).is_err());
        let other = KeyPair::generate_for(kind).unwrap().public_key_pem();
        assert!(verify(&token, &of_pem(other.as_bytes()).unwrap()).is_err());
        // The public key as a secret.
        let confused = encode(
            &Header::new(Algorithm::HS256),
            &claims(&json!({})),
            &EncodingKey::from_secret(pem.as_bytes()),
        );
        assert!(verify(&confused.unwrap(), &keys).is_err());
    }
    assert!(of_pem(b"").is_err());
    assert!(of_secret(b"short\n").is_err());
}

#[test]
fn forged_tokens_are_refused() {
    let keys = of_secret(SECRET).unwrap();
    let body = encoded(&claims(&json!({})).to_string());
    let token = hmac(&claims(&json!({})));
    let signature = token.rsplit('.').next().unwrap();
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"None"}"#,
        r#"{"alg":"nOnE","typ":"JWT"}"#,
        r#"{"alg":""}"#,
        r#"{"typ":"JWT"}"#,
        r#"{"alg":"HS256","crit":["b64"],"b64":false}"#,
        r#"{"alg":"HS512"}"#,
        r#"{"alg":"RS256"}"#,
        "{}",
        "[]",
        "no JSON",
    ] {
        for signature in ["", signature] {
            let forged = format!("{}.{body}.{signature}", encoded(header));
            assert!(verify(&forged, &keys).is_err(), "{header}");
        }
    }
    let (message, _) = token.rsplit_once('.').unwrap();
    for forged in
        ["", ".", "..", "a.b.c", message, &format!("{message}."), &format!("{token}.x"), &format!("{token}A")]
    {
        assert!(verify(forged, &keys).is_err(), "{forged}");
    }
    let other = hmac(&claims(&json!({"sub": "root"})));
    let mixed =
        format!("{}.{}.{signature}", token.split('.').next().unwrap(), other.split('.').nth(1).unwrap());
    assert!(verify(&mixed, &keys).is_err());
    let long = hmac(&claims(&json!({"x": "x".repeat(20_000)})));
    assert!(verify(&long, &keys).is_err());
}

/// A set with one key for signatures, and others that are skipped.
fn jwks(id: &str, pair: &KeyPair) -> String {
    // The point of an uncompressed P-256 key.
    let raw = pair.public_key_raw();
    let text = encoded_bytes;
    json!({"keys": [
        {"kty": "oct", "kid": id, "k": encoded("0123456789abcdef0123456789abcdef")},
        {"kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "alg": "ES256", "x": text(&raw[1..33]), "y": text(&raw[33..])},
        {"kty": "EC", "crv": "P-256", "kid": id, "use": "enc", "x": text(&raw[1..33]), "y": text(&raw[33..])},
        {"kty": "new", "kid": "new"},
        7,
    ]})
    .to_string()
}

fn signed(id: Option<&str>, pair: &KeyPair) -> String {
    let header = Header { kid: id.map(str::to_owned), ..Header::new(Algorithm::ES256) };
    encode(&header, &claims(&json!({})), &EncodingKey::from_ec_der(&pair.serialize_der())).unwrap()
}

#[test]
fn a_set_has_keys_by_identifier() {
    let pair = KeyPair::generate().unwrap();
    let keys = of_jwks(jwks("one", &pair).as_bytes()).unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert!(verify(&signed(Some("one"), &pair), &keys).is_ok());
    assert!(verify(&signed(None, &pair), &keys).is_ok());
    for id in ["two", "../../etc/passwd", "", "'; drop table keys"] {
        assert_eq!(verify(&signed(Some(id), &pair), &keys), Err(Refusal::UnknownKey), "{id}");
    }
    let other = KeyPair::generate().unwrap();
    assert!(matches!(verify(&signed(Some("one"), &other), &keys), Err(Refusal::Invalid(_))));
    for text in ["", "{}", r#"{"keys":7}"#, r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#] {
        assert!(of_jwks(text.as_bytes()).is_err(), "{text}");
    }
}

/// A server of a key set that tests change.
struct Served {
    set: Arc<Mutex<String>>,
    url: String,
    requests: Arc<AtomicUsize>,
}

fn serve(set: String) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let (set, requests) = (Arc::new(Mutex::new(set)), Arc::new(AtomicUsize::new(0)));
    let (current, count) = (Arc::clone(&set), Arc::clone(&requests));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let Ok(_) = stream.read(&mut head) else { continue };
            count.fetch_add(1, Ordering::SeqCst);
            let body = current.lock().unwrap().clone();
            let len = body.len();
            let answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    Served { set, url, requests }
}

fn settings(url: String, refresh_min: Duration) -> TokenSettings {
    TokenSettings {
        rules: rules(),
        jwks_url: Some(url),
        refresh: Duration::from_hours(1),
        refresh_min,
        timeout: Duration::from_secs(10),
        ..TokenSettings::default()
    }
}

/// Verifies a token, after the keys have been read again if it names one that is not known.
fn settle(tokens: &Arc<Tokens>, token: &str) -> Result<TokenUser, Refusal> {
    match tokens.verify(token.as_bytes()) {
        Err(Refusal::UnknownKey) => {
            let (sender, receiver) = channel();
            let (again, token) = (Arc::clone(tokens), token.to_owned());
            let job = move || sender.send(again.verify(token.as_bytes())).unwrap();
            tokens.after_refresh(Box::new(job)).ok().unwrap();
            receiver.recv().unwrap()
        }
        verified => verified,
    }
}

#[test]
fn an_unknown_key_is_fetched_once_per_interval() {
    let (first, second) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let served = serve(jwks("one", &first));
    let tokens = Arc::new(Tokens::open(settings(served.url, Duration::ZERO)).unwrap());
    assert!(settle(&tokens, &signed(Some("one"), &first)).is_ok());
    *served.set.lock().unwrap() = jwks("two", &second);
    assert!(settle(&tokens, &signed(Some("two"), &second)).is_ok(), "the keys have been changed");
    assert!(settle(&tokens, &signed(Some("one"), &first)).is_err(), "the old key is gone");

    let served = serve(jwks("one", &first));
    let tokens = Arc::new(Tokens::open(settings(served.url, Duration::from_hours(1))).unwrap());
    assert!(settle(&tokens, &signed(Some("one"), &first)).is_ok());
    for number in 0..20 {
        let unknown = signed(Some(&number.to_string()), &second);
        assert_eq!(settle(&tokens, &unknown), Err(Refusal::UnknownKey));
    }
    assert_eq!(served.requests.load(Ordering::SeqCst), 1);
}

#[test]
fn keys_stay_while_their_url_fails() {
    let pair = KeyPair::generate().unwrap();
    let served = serve(jwks("one", &pair));
    let tokens = Arc::new(Tokens::open(settings(served.url, Duration::ZERO)).unwrap());
    assert!(settle(&tokens, &signed(Some("one"), &pair)).is_ok());
    *served.set.lock().unwrap() = "no JSON".to_owned();
    let before = served.requests.load(Ordering::SeqCst);
    assert!(settle(&tokens, &signed(Some("two"), &pair)).is_err());
    assert!(served.requests.load(Ordering::SeqCst) > before);
    assert!(tokens.verify(signed(Some("one"), &pair).as_bytes()).is_ok());
}

proptest! {
    #[test]
    fn any_text_is_refused(text in "[A-Za-z0-9_.-]{0,80}", header in ".{0,30}", body in ".{0,30}") {
        let keys = of_secret(SECRET).unwrap();
        prop_assert!(verify(&text, &keys).is_err());
        let forged = format!("{}.{}.{}", encoded(&header), encoded(&body), encoded("x"));
        prop_assert!(verify(&forged, &keys).is_err());
        if let Ok(Value::Object(claims)) = serde_json::from_str(&body) {
            drop(super::token::user(&claims, &rules()));
        }
    }
}
