{#- Written by `lakehouse scaffold`, its own while unchanged: b9d197afeeee6bb2 -#}
{{ cdc_vault.hub(src_pk='hk_account', src_nk='account_id', source_model=['stg_bank__accounts']) }}
