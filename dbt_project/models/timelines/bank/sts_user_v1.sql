{#- Written by `lakehouse scaffold`, its own while unchanged: 016a9572e5a1c86d -#}
{{ cdc_vault.timeline(source_model='sts_user', src_pk='hk_user', src_hashdiff='hd_status') }}
