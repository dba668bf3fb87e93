//! `DescribeUserScramCredentials` (key 50): shows which users have SCRAM credentials (KIP-554).

request!(
    DescribeUserScramCredentialsRequest => DescribeUserScramCredentialsResponse,
    key 50, versions 0..=0, flexible 0..
);

message! {
    pub struct DescribeUserScramCredentialsRequest {
        users: Option<Vec<UserName>>;
    }
}

message! {
    pub struct UserName {
        name: String;
    }
}

message! {
    pub struct DescribeUserScramCredentialsResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        results: Vec<DescribeUserScramCredentialsResult>;
    }
}

message! {
    pub struct DescribeUserScramCredentialsResult {
        user: String;
        error_code: i16;
        error_message: Option<String>;
        credential_infos: Vec<CredentialInfo>;
    }
}

message! {
    pub struct CredentialInfo {
        mechanism: i8;
        iterations: i32;
    }
}
