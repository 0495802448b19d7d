{#- Written by `lakehouse scaffold`, its own while unchanged: 82ae84f3796c176f -#}
{{ eff_sat(src_pk='hk_account_user', src_dfk='hk_account', source_model='stg_bank__accounts') }}
