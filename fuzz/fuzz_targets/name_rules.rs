//! Rules that make user names of names in certificates: any text of rules and any name. Nothing panics; `DEFAULT` and
//! rules that replace nothing keep the name.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstem_security::NameRules;

fuzz_target!(|input: (&str, &str)| {
    let (rules, name) = input;
    if let Ok(parsed) = rules.parse::<NameRules>() {
        parsed.apply(name);
        if rules.trim() == "DEFAULT" {
            assert_eq!(parsed.apply(name).as_deref(), Some(name));
        }
    }
    let whole = format!("RULE:(?s)(.*)/${{0}}/,{rules}");
    assert!(whole.parse::<NameRules>().is_err(), "a group has no such name");
    if let Ok(parsed) = format!("RULE:\\A(?s)(.*)\\z/$1/,{rules}").parse::<NameRules>() {
        assert_eq!(parsed.apply(name).as_deref(), Some(name));
    }
});
