{#- Written by `lakehouse scaffold`, its own while unchanged: 9e227c8720bfb8ee -#}
{{ cdc_vault.eff_sat(src_pk='hk_account_user', src_dfk='hk_account', source_model='stg_bank__accounts') }}
