{#- Written by `lakehouse scaffold`, its own while unchanged: bd7325f0b8d05a36 -#}
{{ cdc_vault.sts_sat(src_pk='hk_user', source_model='stg_bank__users') }}
