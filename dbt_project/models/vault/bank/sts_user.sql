{#- Written by `lakehouse scaffold`, its own while unchanged: ce5dc1e46d3b411c -#}
{{ cdc_vault.sts_sat(src_pk='hk_user', source_model='stg_bank__users', src_nk=['id']) }}
